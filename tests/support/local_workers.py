"""What the workers of the distributed tests do that make their steps alone."""

import time

import mxnet as mx
import numpy as np

import gluon_workers
from blocks import Blocks
from shards import error_of, problem_of, shard_of, weights_of
from svrg_optimization import SVRGModule
from svrg_optimization.gluon import SVRGTrainer

LINEAR = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(
    mx.sym.Variable('data'), num_hidden=1, no_bias=True, name='fc'), mx.sym.Variable('label'))


def counting_pushes(kvstore):
    """Return a list that grows with each push of this worker."""
    push, pushed = kvstore.push, []

    def counting(key, *args, **kwargs):
        pushed.append(key)
        push(key, *args, **kwargs)

    kvstore.push = counting
    return pushed


def least_squares(workers, unlike, seed, rows, features):
    """Return rows and targets, which have other means and scales in each shard if `unlike`."""
    rng = np.random.RandomState(seed)
    data = rng.normal(size=(rows, features))
    if unlike:
        data += np.repeat(rng.normal(size=(workers, features)), rows // workers, 0)
        data *= np.repeat(np.exp(.5 * rng.normal(size=(workers, 1))), rows // workers, 0)
    targets = data @ rng.normal(size=features) + rng.normal(size=rows)
    if unlike:
        targets += np.repeat(rng.normal(size=workers) * 2, rows // workers)
    return data, targets


def converge_alone(kvstore, unlike, seed=0, rows=480, features=10, tol=1e-5, dtype='float32'):
    """Train least squares with svrg_lbfgs on alike or unlike shards.

    Returns the epochs, the weights, the rows of all workers with their targets, and how often
    something was pushed within an epoch and at all. The last worker is late in its second epoch.
    """
    workers, rank = kvstore.num_workers, kvstore.rank
    data, targets = least_squares(workers, unlike, seed, rows, features)
    own = np.array_split(np.arange(len(data)), workers)[rank]
    train_data = mx.io.NDArrayIter(
        mx.nd.array(data[own], dtype=dtype), mx.nd.array(targets[own], dtype=dtype), 20,
        shuffle=dtype == 'float32', label_name='label')  # a shuffle makes float32 of float64
    module = SVRGModule(LINEAR, label_names=('label',), update_freq=1, tol=tol, local_steps=True)
    pushed, within, last = counting_pushes(kvstore), [0], [None, 0]

    def batch_end(param):
        if last[0] == param.epoch:
            within[0] += len(pushed) - last[1]
        last[:] = param.epoch, len(pushed)
        if rank == workers - 1 and param.epoch == 1:
            time.sleep(0.05)

    module.fit(train_data, kvstore=kvstore, initializer=mx.init.Zero(), eval_metric='mse',
               num_epoch=100, batch_end_callback=batch_end, optimizer='svrg_lbfgs',
               optimizer_params={'wd': 1e-3})
    return {'epochs': module._snapshot.num_taken - 1, 'converged': module.has_converged,
            'weights': weights_of(module)['fc_weight'][0], 'data': data, 'targets': targets,
            'within': within[0], 'pushed': len(pushed)}


def statistics_alone(kvstore, sizes):
    """Train a network with BatchNorm for one epoch; return its statistics after each step."""
    rng = np.random.RandomState(0)
    data = rng.normal(2, 3, (sum(sizes), 4))
    own = slice(sum(sizes[:kvstore.rank]), sum(sizes[:kvstore.rank + 1]))
    net = mx.sym.FullyConnected(mx.sym.BatchNorm(mx.sym.Variable('data'), name='bn'),
                                num_hidden=1, name='fc')
    symbol = mx.sym.LinearRegressionOutput(net, mx.sym.Variable('label'))
    module = SVRGModule(symbol, label_names=('label',), update_freq=1, local_steps=True)
    found = []

    def keep(_):
        mx.nd.waitall()  # BatchNorm writes its statistics behind the engine's back
        found.append(module._exec_group.aux_arrays[0][0].asnumpy())

    module.fit(mx.io.NDArrayIter(data[own], data[own, 0], 8, label_name='label'), kvstore=kvstore,
               eval_metric='mse', num_epoch=1, batch_end_callback=keep,
               optimizer_params={'learning_rate': 0.01})
    return found[-1], module.get_params()[1]['bn_moving_mean'].asnumpy()


def refused_alone(kvstore, problem, sizes):
    """Return the messages of what must be refused with local steps."""
    problem = problem_of(problem)
    train_data = shard_of(problem, sizes, kvstore.rank, 4)

    def fit(update_freq):
        problem.module(update_freq, local_steps=True).fit(
            train_data, kvstore=kvstore, arg_params=problem.arg_params(), num_epoch=1)

    def trainer():
        SVRGTrainer([mx.gluon.Parameter('w', shape=(1,))], 'sgd', kvstore=kvstore,
                    objective=lambda data: data, local_steps=True)

    found = [error_of(lambda: fit(1 if kvstore.type == 'dist_async' or kvstore.rank else 2))]
    return found + [error_of(trainer)] if kvstore.type == 'dist_async' else found


def resume_gluon_alone(kvstore, problem, sizes, prefix, begin):
    """Train a block to epoch 4, from the files of rank 0 after epoch 2 or to write them."""
    problem = Blocks(**problem)
    net = problem.net()
    trainer = problem.trainer(net, kvstore=kvstore, local_steps=True)
    if begin:
        net.load_parameters(prefix + '.params')
        trainer.load_states(prefix + '.states')
    shard = gluon_workers.shard_of(problem, sizes, kvstore.rank, 8)
    for epoch, batches in enumerate(trainer.epochs(shard, 4, begin_epoch=begin), begin):
        for data, label in batches:
            trainer.backward(data, label)
            trainer.step(8)
        if not begin and epoch == 1 and kvstore.rank == 0:
            net.save_parameters(prefix + '.params')
            trainer.save_states(prefix + '.states')
    return gluon_workers.weights_of(net)

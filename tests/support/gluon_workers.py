"""What the workers of the distributed tests do with SVRGTrainer."""

import warnings

import mxnet as mx
import numpy as np
from mxnet import gluon

from blocks import Blocks, as_blocks_take, train, weights_of


def begun(kvstore, problem, with_np):
    """Return the problem and its net, whose weights are those that count on the first worker."""
    if with_np:
        mx.npx.set_np()
    problem = Blocks(**problem)
    net = problem.net()
    if kvstore.rank:
        for param in net.collect_params().values():
            param.set_data(as_blocks_take(np.zeros(param.shape)))
    return problem, net


def fit_gluon(kvstore, problem, sizes, batch_size, num_epoch, optimizer, name='sgd',
              with_np=False):
    """Train on one shard and return the weights; or the message of a ValueError.

    With `with_np` the arrays are mx.np arrays.
    """
    problem, net = begun(kvstore, problem, with_np)
    # By its name: the process is connected already, and a second connection would hang.
    trainer = problem.trainer(net, optimizer=name, settings=optimizer, kvstore=kvstore.type)
    try:
        train(trainer, shard_of(problem, sizes, kvstore.rank, batch_size), num_epoch,
              batch_size=batch_size * len(sizes))
    except ValueError as error:
        return str(error)
    return weights_of(net)


def shard_of(problem, sizes, rank, batch_size):
    rows = slice(sum(sizes[:rank]), sum(sizes[:rank + 1]))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(
        problem.features[rows].astype('float32'), problem.targets[rows].astype('float32')),
        batch_size)


def train_unlike_gluon(kvstore, problem, sizes, settings, loops):
    """Train with settings and numbers of epochs of each rank's own.

    Return its error's message, and its steps.
    """
    problem, rank, steps = Blocks(**problem), kvstore.rank, 0
    trainer = problem.trainer(problem.net(), kvstore=kvstore, **settings[rank])
    loop = {'num_epoch': 4, **loops[rank]}
    batch_size = loop.pop('batch_size', 16)
    shard = shard_of(problem, sizes, rank, 8)
    if loop.get('begin_epoch'):
        trainer.update_full_grads(shard)
    try:
        for batches in trainer.epochs(shard, **loop):
            for data, label in batches:
                trainer.backward(data, label)
                trainer.step(batch_size)
                steps += 1
    except ValueError as error:
        return str(error), steps
    return None, steps


def warn_of_batch_sizes(kvstore, problem, sizes, batch_size, given):
    """Return what an epoch of steps with each given batch size warns of."""
    problem, messages = Blocks(**problem), []
    trainer = problem.trainer(problem.net(), kvstore=kvstore)
    loader = shard_of(problem, sizes, kvstore.rank, batch_size)
    trainer.update_full_grads(loader)
    for number in given:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            for batch in loader:
                trainer.backward(*batch)
                trainer.step(number)
        messages.append([str(one.message) for one in caught])
    return messages


def fit_on_raw_columns_gluon(kvstore, problem, sizes, batch_size, units):
    """Train on columns in some units; return the metric's block, the norm and the weights."""
    problem = Blocks(**problem)
    problem.features *= units
    net = problem.net()
    net.initialize(mx.init.Zero(), force_reinit=True)
    net[0].bias.wd_mult = 0
    trainer = problem.trainer(net, optimizer='svrg_lbfgs', kvstore=kvstore, tol=1e-4,
                              settings={'wd': 1e-3})
    for batches in trainer.epochs(shard_of(problem, sizes, kvstore.rank, batch_size), 200):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(batch_size * len(sizes))
    block, = trainer._optimizer.lr_scheduler.metric.blocks
    return block, trainer.gradient_norm * trainer.has_converged, weights_of(net)

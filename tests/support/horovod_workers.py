"""What the workers of Horovod do in the tests: many checks in one job.

Run as a script by every worker of a job, with the directory where a test has left the
checks to make, and finds their results.
"""

import faulthandler
import os
import pickle
import sys
import time
import warnings
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import gluon

import gluon_workers
import workers
from blocks import Blocks
from problems import Problem
from shards import error_of, problem_of, shard_of, weights_of
from svrg_optimization import SVRGModule


class Named(str):
    """The name of Horovod's KVStore; other files' scenarios ask a KVStore for the rest."""

    rank, num_workers = property(lambda _: hvd.rank()), property(lambda _: hvd.size())
    type = property(str)

    def _barrier(self):
        """Do nothing: no scenario may need it."""


HOROVOD = Named('horovod')


def wait_for_all():
    hvd.allreduce(mx.nd.zeros(1), name='all are here').wait_to_read()


def fit(problem, sizes, devices=1, optimizer='sgd', settings=(), batch_size=8, **arguments):
    """Train from the weights of rank 0; return the weights of this rank, and the norm."""
    problem, rank = problem_of(problem), hvd.rank()
    module = problem.module(2, context=[mx.cpu(i) for i in range(devices)], **arguments)
    train_data = shard_of(problem, sizes, rank, batch_size)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(arg_params={name: value + rank
                                   for name, value in problem.arg_params().items()})
    module.init_optimizer('horovod', optimizer, settings)
    module.fit(train_data, eval_metric='mse', num_epoch=5)
    return weights_of(module), module.gradient_norm


def resume(problem, sizes, prefix):
    """Train, and again from the checkpoint of rank 0 between two snapshots; return both weights."""
    problem, found = problem_of(problem), []
    train_data = shard_of(problem, sizes, hvd.rank(), 8)
    module = problem.module(2)
    for begin in (0, 3):
        if begin:
            wait_for_all()
            module = SVRGModule.load(prefix, begin, load_optimizer_states=True,
                                     label_names=('label',))

        def save(epoch, *_, of=module):
            if hvd.rank() == 0 and epoch == 2:
                of.save_checkpoint(prefix, 3, save_optimizer_states=True)

        module.fit(train_data, kvstore='horovod', eval_metric='mse', begin_epoch=begin,
                   num_epoch=5, arg_params=module._arg_params or problem.arg_params(),
                   optimizer_params={'learning_rate': 0.1, 'momentum': 0.5},
                   epoch_end_callback=save)
        found.append(weights_of(module))
    return found


def fit_gluon(problem, sizes, devices=1):
    """Train a Gluon block from the weights of rank 0; return its weights and the warnings."""
    problem, rank = Blocks(**problem), hvd.rank()
    net = problem.net([mx.cpu(i) for i in range(devices)])
    for param in net.collect_params().values():
        param.set_data(param.data(mx.cpu(0)) + rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        trainer = problem.trainer(net, settings={'learning_rate': 0.1, 'momentum': 0.5},
                                  kvstore='horovod')
    shard = gluon_workers.shard_of(problem, sizes, rank, 8)
    for epoch in range(4):
        if epoch % 2 == 0:
            trainer.update_full_grads(shard)
        for batch in shard:
            batch = [gluon.utils.split_and_load(array, trainer._devices, even_split=False)
                     for array in batch]
            rows = hvd.allreduce(mx.nd.array([sum(map(len, batch[0]))]), op=hvd.Sum, name='rows')
            trainer.backward(*batch)
            trainer.step(int(rows.asscalar()))
    return gluon_workers.weights_of(net), [str(one.message) for one in caught]


def before_init():
    """Return the messages of what needs Horovod to be initialized."""
    return [error_of(Problem(rows=16).bound(8).init_optimizer, 'horovod'),
            error_of(lambda: Blocks(rows=16).trainer(Blocks(rows=16).net(), kvstore='horovod'))]


def refusals():
    """Return the messages of all else that is refused, by its name."""
    problem, told = Problem(rows=16), {}

    def install(name, kvstore, optimizer='sgd', problem=problem, **arguments):
        module = problem.bound(8, **arguments)
        told[name] = error_of(module.init_optimizer, kvstore, optimizer)
        assert told[name] is None or not module.optimizer_initialized

    wrapped = hvd.DistributedOptimizer(mx.optimizer.SGD())
    install('row_sparse', 'horovod', problem=workers.SparseProblem())
    install('wrapped', None, wrapped)
    install('compression', 'horovod', compression_params={'type': '2bit', 'threshold': 0.5})
    install('adam by the rule', 'horovod', mx.optimizer.Adam(
        lr_scheduler=mx.optimizer.create('svrg_lbfgs').lr_scheduler))
    told['wrapped in Gluon'] = error_of(lambda: Blocks(rows=16).trainer(
        Blocks(rows=16).net(), optimizer=wrapped, settings=None))
    plain = mx.mod.Module(problem.symbol, label_names=('label',))
    plain.bind(problem.iterator(8).provide_data, problem.iterator(8).provide_label)
    plain.init_params()
    plain.init_optimizer(None, hvd.DistributedOptimizer(  # which makes the 1/8 that it expects
        mx.optimizer.SGD(rescale_grad=1 / 4)))
    told['borrowed'] = error_of(problem.bound(8).borrow_optimizer, plain)
    net = gluon.nn.Embedding(4, 2, sparse_grad=True)
    net.initialize()
    told['sparse gradients in Gluon'] = error_of(lambda: Blocks(rows=16).trainer(
        net, kvstore='horovod'))
    wait_for_all()  # a rank that ends shuts Horovod down on all
    return told


ELSEWHERE = {name: getattr(module, name) for module, name in (
    (workers, 'fit_with_a_rule'), (workers, 'fit_until_converged'), (workers, 'fit_unlike'))}


def end_at_once(problem):
    """Take a step that rank 0 is late for, and end; return the weights of rank 0 after it."""
    problem = Blocks(**problem)
    net = problem.net()
    trainer, (batch, *_) = problem.trainer(net, kvstore='horovod', alpha=0), problem.loader(8)
    trainer.backward(*batch)
    time.sleep(0 if hvd.rank() else 1)
    trainer.step(8 * hvd.size())
    return None if hvd.rank() else gluon_workers.weights_of(net)


def main(directory):
    faulthandler.enable()
    results = {'before init': before_init()}
    hvd.init()
    print('rank %d is process %d' % (hvd.rank(), os.getpid()), flush=True)
    for name, scenario, arguments in pickle.loads((directory / 'checks').read_bytes()):
        print('checks', name, flush=True)
        if scenario in ELSEWHERE:
            results[name] = ELSEWHERE[scenario](HOROVOD, **arguments)
        else:
            results[name] = globals()[scenario](**arguments)
    (directory / ('result-%d' % hvd.rank())).write_bytes(pickle.dumps(results))


if __name__ == '__main__':
    warnings.simplefilter('error', UserWarning)
    warnings.filterwarnings('ignore', 'Parameters already initialized')
    main(Path(sys.argv[1]))

"""What the workers of the distributed tests do with Horovod alone."""

import time

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import gluon

from blocks import Blocks, weights_of
from problems import Problem, SparseProblem, prepared
from shards import error_of


class Named(str):
    """The name of Horovod's KVStore; scenarios ask a KVStore for the rest."""

    rank, num_workers = property(lambda _: hvd.rank()), property(lambda _: hvd.size())

    def _barrier(self):
        hvd.allreduce(mx.nd.zeros(1), name='all are here').wait_to_read()


def begin():
    hvd.init()
    return Named('horovod')


def before_init():
    """Return the messages of what needs Horovod to be initialized."""
    return [error_of(Problem(rows=16).bound(8).init_optimizer, 'horovod'),
            error_of(lambda: Blocks(rows=16).trainer(Blocks(rows=16).net(), kvstore='horovod'))]


def refusals(kvstore):
    """Return the messages of all else that is refused, by its name."""
    problem, told = Problem(rows=16), {}

    def install(name, kvstore, optimizer='sgd', problem=problem, **arguments):
        module = problem.bound(8, **arguments)
        told[name] = error_of(module.init_optimizer, kvstore, optimizer)
        assert told[name] is None or not module.optimizer_initialized

    wrapped = hvd.DistributedOptimizer(mx.optimizer.SGD())
    install('row_sparse', kvstore, problem=SparseProblem())
    install('wrapped', None, wrapped)
    install('compression', kvstore, compression_params={'type': '2bit', 'threshold': 0.5})
    told['wrapped in Gluon'] = error_of(lambda: Blocks(rows=16).trainer(
        Blocks(rows=16).net(), optimizer=wrapped, settings=None))
    plain = prepared(mx.mod.Module(problem.symbol, label_names=('label',)), problem.iterator(8))
    plain.init_optimizer(None, hvd.DistributedOptimizer(  # which makes the 1/8 that it expects
        mx.optimizer.SGD(rescale_grad=1 / 4)))
    told['borrowed'] = error_of(problem.bound(8).borrow_optimizer, plain)
    net = gluon.nn.Embedding(4, 2, sparse_grad=True)
    net.initialize()
    told['sparse gradients in Gluon'] = error_of(lambda: Blocks(rows=16).trainer(
        net, kvstore=kvstore))
    return told


def end_at_once(kvstore, problem):
    """Take a step that rank 0 is late for, and end; return the weights of rank 0 after it."""
    problem = Blocks(**problem)
    net = problem.net()
    trainer, (batch, *_) = problem.trainer(net, kvstore=kvstore, alpha=0), problem.loader(8)
    trainer.backward(*batch)
    time.sleep(0 if kvstore.rank else 1)
    trainer.step(8 * kvstore.num_workers)
    return None if kvstore.rank else weights_of(net)

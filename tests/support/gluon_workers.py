"""What the workers of the distributed tests do with SVRGTrainer."""

import warnings

import mxnet as mx
from mxnet import gluon

from blocks import Blocks, train, weights_of
from svrg_optimization import BarzilaiBorwein


def fit_gluon(kvstore, problem, sizes, batch_size, num_epoch, optimizer, base_lr=None):
    """Train on one shard and return the weights; or the message of a ValueError.

    With `base_lr` the rate is BarzilaiBorwein's.
    """
    problem, rank = Blocks(**problem), kvstore.rank
    net = problem.net()
    if base_lr:
        optimizer = {**optimizer, 'lr_scheduler': BarzilaiBorwein(base_lr, bounded=False)}
    if rank:
        for param in net.collect_params().values():
            param.set_data(mx.nd.zeros(param.shape))  # the first worker's count
    trainer = problem.trainer(net, settings=optimizer, kvstore=kvstore)
    try:
        train(trainer, shard_of(problem, sizes, rank, batch_size), num_epoch,
              batch_size=batch_size * len(sizes))
    except ValueError as error:
        return str(error)
    return weights_of(net)


def shard_of(problem, sizes, rank, batch_size):
    rows = slice(sum(sizes[:rank]), sum(sizes[:rank + 1]))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(
        problem.features[rows].astype('float32'), problem.targets[rows].astype('float32')),
        batch_size)


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

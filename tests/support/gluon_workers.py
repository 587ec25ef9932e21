"""What the workers of the distributed tests do with SVRGTrainer."""

import mxnet as mx
from mxnet import gluon

from blocks import Blocks, train, weights_of


def fit_gluon(kvstore, problem, sizes, batch_size, num_epoch, optimizer):
    """Train on one shard and return the weights; or the message of a ValueError."""
    problem, rank = Blocks(**problem), kvstore.rank
    net = problem.net()
    if rank:
        for param in net.collect_params().values():
            param.set_data(mx.nd.zeros(param.shape))  # the first worker's count
    trainer = problem.trainer(net, settings=optimizer, kvstore=kvstore)
    rows = slice(sum(sizes[:rank]), sum(sizes[:rank + 1]))
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(
        problem.features[rows].astype('float32'), problem.targets[rows].astype('float32')),
        batch_size)
    try:
        train(trainer, loader, num_epoch, batch_size=batch_size * len(sizes))
    except ValueError as error:
        return str(error)
    return weights_of(net)

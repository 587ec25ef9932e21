"""What the workers of the distributed tests do with SVRGTrainer."""

import warnings

import mxnet as mx
from mxnet import gluon

from blocks import Blocks, weights_of
from shards import problem_of


def fit_gluon(kvstore, sizes, problem=(), batch_size=8, num_epoch=4, update_freq=2, begin_epoch=0,
              devices=1, step_size=None, with_np=False, by_name=False, steps=None, **given):
    """Train on one shard from the weights of rank 0, where no bias decays.

    Return what a test may ask for. `steps` gets the sizes of steps. With `with_np` the arrays are
    mx.np arrays.
    """
    if with_np:
        mx.npx.set_np()
    contexts = [mx.cpu(i) for i in range(devices)]
    problem, steps = problem_of(problem, sizes, Blocks), [] if steps is None else steps
    net = problem.net(contexts)
    for name, param in net.collect_params().items():
        param.set_data(param.data(contexts[0]) + kvstore.rank)
        param.wd_mult = float(name.endswith('weight'))
    # By its name: the process is connected already, and a second connection would hang.
    trainer = problem.trainer(net, kvstore=kvstore.type if by_name else kvstore, **given)
    shard = shard_of(problem, sizes, kvstore.rank, batch_size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings('always', 'batch_size of step is')
        if begin_epoch:
            trainer.update_full_grads(shard)
        for batches in trainer.epochs(shard, num_epoch, update_freq, begin_epoch=begin_epoch):
            for batch in batches:
                trainer.backward(*batch)
                trainer.step(step_size or batch_size * len(sizes))
                steps.append(step_size)
    metric = trainer._svrg.training.learned.metric
    return {'weights': weights_of(net), 'epochs': trainer.result.epochs,
            'warnings': [str(one.message) for one in caught],
            'norm': trainer.gradient_norm, 'has_converged': trainer.has_converged,
            'blocks': metric and metric.blocks}


def shard_of(problem, sizes, rank, batch_size):
    rows = slice(sum(sizes[:rank]), sum(sizes[:rank + 1]))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(
        problem.features[rows].astype('float32'), problem.targets[rows].astype('float32')),
        batch_size)

"""SVRGTrainer beside other parts of Gluon: clipping, and several trainers."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, assert_weights

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('contexts', [[mx.cpu()], TWO_DEVICES])
def test_gradients_are_clipped_between_allreduce_and_update(contexts):
    problem, norm, clipped = Blocks('softmax'), 4., []
    net = problem.net(contexts)
    trainer = problem.trainer(net, settings={'learning_rate': 0.2}, update_on_kvstore=False)
    svrg = problem.svrg(10, learning_rate=0.2)
    step = svrg.optimizer.step

    def clipped_step(weights, gradients):
        length = np.sqrt(sum((value ** 2).sum() for value in gradients.values()))
        clipped.append(length > norm)
        step(weights, {name: value * min(1, norm / length) for name, value in gradients.items()})

    svrg.optimizer.step = clipped_step
    for _ in range(3):
        trainer.update_full_grads(problem.loader())
        svrg.take_snapshot()
        for begin, batch in zip(range(0, 40, 10), problem.loader()):
            trainer.backward(*(gluon.utils.split_and_load(array, contexts) for array in batch))
            trainer.allreduce_grads()
            for device in contexts:
                gluon.utils.clip_global_norm([param.grad(device).as_nd_ndarray() for param in
                                              net.collect_params().values()], norm)
            trainer.update(10)
            svrg.step(np.arange(begin, begin + 10))
    assert 0 < sum(clipped) < len(clipped)
    assert_weights(net, svrg.weights)


def test_trainers_of_losses_that_share_no_weights_take_turns():
    problems = [Blocks('softmax', rows=40), Blocks('perceptron', rows=40)]
    nets = [problem.net() for problem in problems]
    trainers = [problem.trainer(net) for problem, net in zip(problems, nets)]
    for epoch in range(4):
        if epoch % 2 == 0:
            for trainer, problem in zip(trainers, problems):
                trainer.update_full_grads(problem.loader())
        for batches in zip(*(problem.loader() for problem in problems)):
            for trainer, batch in zip(trainers, batches):
                trainer.backward(*batch)
            for trainer in trainers:
                trainer.step(10)
    for net, problem in zip(nets, problems):
        assert_weights(net, problem.oracle(4))

"""SVRGTrainer beside other parts of Gluon: clipping, several trainers, SymbolBlock."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from blocks import Blocks, assert_weights, train, weights_of

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.mark.parametrize('contexts', [[mx.cpu()], TWO_DEVICES])
def test_gradients_are_clipped_between_allreduce_and_update(contexts):
    problem, norm = Blocks('softmax'), 4.
    net = problem.net(contexts)
    trainer = problem.trainer(net, settings={'learning_rate': 0.2}, update_on_kvstore=False)
    weights = {name: value.astype('float64') for name, value in weights_of(net).items()}
    svrg, clipped = problem.svrg(10, learning_rate=0.2), []
    for _ in range(3):
        trainer.update_full_grads(problem.loader())
        rows_of_pass = np.arange(40)
        at = dict(weights)
        mean = {name: value / 4 for name, value in svrg.gradients(at, rows_of_pass).items()}
        for begin, batch in zip(range(0, 40, 10), problem.loader()):
            trainer.backward(*(gluon.utils.split_and_load(array, contexts) for array in batch))
            trainer.allreduce_grads()
            for device in contexts:
                gluon.utils.clip_global_norm([param.grad(device).as_nd_ndarray() for param in
                                              net.collect_params().values()], norm)
            trainer.update(10)
            rows = np.arange(begin, begin + 10)
            here, there = (svrg.gradients(each, rows) for each in (weights, at))
            gradient = {name: here[name] - there[name] + mean[name] for name in here}
            length = np.sqrt(sum((value ** 2).sum() for value in gradient.values()))
            clipped.append(length > norm)
            for name, value in gradient.items():
                weights[name] = weights[name] - 0.02 * value * min(1, norm / length)
    assert 0 < sum(clipped) < len(clipped)
    assert_weights(net, weights)


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

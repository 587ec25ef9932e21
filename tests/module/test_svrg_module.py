"""SVRGModule as a Module: its fit, log lines, callbacks, errors and containers."""

import logging

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import Problem
from svrg_optimization import SVRGModule


def test_rescale_grad_is_warned_of_only_for_an_instance():
    module = Problem().bound()
    module.init_optimizer(optimizer_params={'learning_rate': 0.1, 'rescale_grad': 1.0})
    assert module._optimizer.rescale_grad == 1.0
    with pytest.warns(UserWarning, match='rescale_grad'):
        Problem().bound().init_optimizer(optimizer=mx.optimizer.SGD())


def test_numbers_and_bools_of_numpy_are_taken():
    assert type(Problem().module(np.array(2)).update_freq) is int
    module = Problem().module(np.int64(2), loss_is_mean=np.bool_(False),
                              alpha=np.array(0.5), full_grad_batches=np.int32(3))
    assert module.update_freq == 2 and type(module.update_freq) is int
    assert module.alpha == 0.5 and module.full_grad_batches == 3
    module.alpha = np.float32(0.25)
    assert module.alpha == 0.25
    module.alpha = lambda _: np.array(1.0)
    module.fit(Problem().iterator(), eval_metric='mse', num_epoch=1)


def test_log_lines_of_snapshots_come_before_those_of_their_epoch(caplog):
    problem = Problem(rows=37)
    with caplog.at_level(logging.INFO):
        problem.fit(problem.module(2, logger=logging.getLogger('training')), 3, eval_metric='mse')
    lines = [line for line in caplog.messages if line.startswith('Epoch')]
    of_snapshot = ['Full gradient time', 'Full gradient norm', 'Full objective']
    assert [line.split('=')[0] for line in lines] == [
        'Epoch[%d] %s' % (epoch, head) for epoch in range(3)
        for head in [*of_snapshot[:3 * (epoch != 1)], 'Train-mse', 'Time cost']]
    assert 0 <= float(lines[0].split('=')[1]) <= float(lines[4].split('=')[1])
    assert {record.name for record in caplog.records} == {'training'}


def test_arguments_of_a_base_classs_fit_are_passed_on():
    class Tagged(mx.mod.Module):
        def fit(self, train_data, *, begin_epoch=0, tag=None, **kwargs):
            self.tag = tag
            super().fit(train_data, begin_epoch=begin_epoch, **kwargs)

    class TaggedSVRG(Tagged, SVRGModule):
        pass

    problem = Problem()
    module = TaggedSVRG(problem.symbol, label_names=('label',), update_freq=2)
    problem.fit(module, 5, begin_epoch=1, tag='one', optimizer_params={'learning_rate': 0.1})
    assert module.tag == 'one'
    problem.assert_weights(module, problem.svrg().fit(5, 2, begin_epoch=1))


class HeadGradients(SVRGModule):
    """A module that trains a symbol without a loss, by gradients of its output."""

    def backward(self, out_grads=None):
        super().backward([self.get_outputs()[0]] if out_grads is None else out_grads)


def test_a_symbol_without_a_loss_trains_as_plain_module():
    problem = Problem(rows=40)
    output = problem.symbol.get_internals()['fc_output']
    symbol = mx.sym.broadcast_sub(output, mx.sym.Variable('label'))
    train_data = mx.io.NDArrayIter(problem.features, problem.targets[:, None], 10,
                                   label_name='label')
    module = HeadGradients(symbol, label_names=('label',), update_freq=1)
    with pytest.warns(UserWarning, match=': fit trains as plain Module') as caught:
        module.fit(train_data, eval_metric=mx.metric.Loss(), num_epoch=3,
                   arg_params=problem.arg_params(), optimizer_params={'learning_rate': 0.1})
    assert sum('plain Module' in str(warning.message) for warning in caught) == 1
    sgd = problem.svrg()
    for rows in 3 * oracle.batches_of(40, 10):
        sgd.step(rows)
    problem.assert_weights(module, sgd.weights)

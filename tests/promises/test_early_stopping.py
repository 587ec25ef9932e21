"""A training ends after some epochs without a better value, with the weights of the best one."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks, weights_of
from problems import Problem
from svrg_optimization import EarlyStopping

VALUES = [3., 2., float('nan'), 2., 2.5, 0.]  # the fourth and fifth are no better than the second


def weight_of(module):
    return module.get_params()[0]['fc_weight'].asnumpy()


def module_of(epochs, *given):
    """Train by fit; return the stopping, the weights after each epoch and those at the end."""
    problem, seen, values = Problem(), [], iter(VALUES)
    module = problem.module()
    score = mx.metric.np(lambda label, output: next(values))  # with one batch of validation data
    with EarlyStopping(module, *given) as stopping:
        problem.fit(module, epochs, eval_data=problem.iterator(40), validation_metric=score,
                    epoch_end_callback=lambda *_: seen.append(weight_of(module)),
                    eval_end_callback=stopping)
    return stopping, seen, weight_of(module)


def trainer_of(epochs, *given):
    """Do the same by SVRGTrainer's loop."""
    problem, seen = Blocks(), []
    net = problem.net()
    trainer = problem.trainer(net)
    with EarlyStopping(trainer, *given) as stopping:
        for epoch, batches in enumerate(trainer.epochs(problem.loader(), epochs)):
            for batch in batches:
                trainer.backward(*batch)
                trainer.step(10)
            seen.append(weights_of(net)['fc_weight'])
            stopping.check(VALUES[epoch])
    return stopping, seen, weights_of(net)['fc_weight']


@pytest.mark.parametrize('train', [module_of, trainer_of])
@pytest.mark.parametrize('epochs, mode, patience, trained, best', [
    (6, 'min', 3, 5, 1), (4, 'min', 3, 4, 1), (6, 'min', 1, 3, 1), (6, 'max', 2, 3, 0)])
def test_it_ends_with_the_weights_of_the_best_epoch(train, epochs, mode, patience, trained, best):
    stopping, seen, weights = train(epochs, mode, patience)
    assert len(seen) == trained and (stopping.best, stopping.best_epoch) == (VALUES[best], best)
    result = stopping._model.result
    is_early = trained < epochs
    assert (result.reason, result.epochs) == (
        'stopped early' if is_early else 'epochs used up', trained)
    assert not is_early or str(result).startswith('training was stopped early (')
    np.testing.assert_array_equal(weights, seen[best])
    assert not any(np.array_equal(weights, each) for each in seen[best + 1:])


def test_other_errors_pass_and_change_no_weights():
    problem = Problem()
    module = problem.bound()
    with pytest.raises(KeyError), EarlyStopping(module, 'min', 1) as stopping:
        stopping.check(1.)
        module.set_params({name: value + 1 for name, value in module.get_params()[0].items()}, {})
        changed = weight_of(module)
        raise KeyError
    np.testing.assert_array_equal(weight_of(module), changed)


@pytest.mark.parametrize('given, error, names', [
    ({'mode': 'less'}, ValueError, "mode .*'min'.*'max'"),
    ({'mode': 'min', 'patience': 0}, ValueError, 'patience .* 1 or more'),
    ({'mode': 'min', 'monitor': 3}, TypeError, 'monitor must be None or .*, not 3')])
def test_wrong_arguments_are_named(given, error, names):
    with pytest.raises(error, match=names):
        EarlyStopping(None, **given)


@pytest.mark.parametrize('metric, monitor, says', [
    (['ce', 'acc'], None, "must name one of the metrics .'cross-entropy', 'accuracy'., .* None"),
    (['ce', 'acc'], 'mse', "must .* and not be 'mse'"), ([], None, 'must name one of the metrics'),
    ('ce', 'acc', "must .*'cross-entropy'., and not be 'acc'"), (['ce', 'ce'], 'ce', 'must name')])
def test_it_takes_one_metric_before_the_first_epoch(metric, monitor, says):
    problem = Problem('softmax')
    module, valid_data = problem.module(), problem.iterator()
    with pytest.raises(ValueError, match='monitor of an EarlyStopping ' + says), (
            EarlyStopping(module, 'min', monitor=monitor)) as stopping:
        problem.fit(module, 1, eval_data=valid_data, eval_metric='mse', validation_metric=metric,
                    eval_end_callback=[stopping])
    assert not module.binded
    with pytest.raises(ValueError, match='monitor of an EarlyStopping ' + says):  # as in Module
        stopping(SimpleNamespace(eval_metric=mx.metric.create(metric)))
    with pytest.raises(ValueError, match='eval_data must be given with an EarlyStopping'):
        problem.fit(module, 1, eval_end_callback=stopping)
    assert not module.binded and stopping.best_epoch is None


def mean_output(label, output):
    return output.mean()


class Ratio(mx.metric.EvalMetric):
    """A metric that cannot be asked before its first batch."""

    def update(self, labels, preds):
        self.num_inst += 1
        self.sum_metric += 1.

    def get(self):
        return self.name, 1. / self.num_inst


@pytest.mark.parametrize('metric, monitor, place', [
    (['acc', 'ce'], 'ce', 1), (['acc', 'ce'], 'cross-entropy', 1), (['acc', 'ce'], 'ACC', 0),
    ([mx.metric.CrossEntropy(name='mine'), 'ce'], 'mine', 0),
    ([mx.metric.np(mean_output), 'acc'], 'mean_output', 0), (['acc', Ratio('ratio')], 'ratio', 1)])
def test_monitor_names_the_metric(metric, monitor, place):
    problem, seen = Problem('softmax'), []
    module = problem.module()
    with EarlyStopping(module, 'max', monitor=monitor) as stopping:
        problem.fit(module, 3, eval_data=problem.iterator(), validation_metric=metric,
                    eval_end_callback=[stopping, lambda param: seen.append(
                        param.eval_metric.get_name_value()[place][1])])
    assert stopping.best == max(seen) and stopping.best_epoch == seen.index(max(seen))

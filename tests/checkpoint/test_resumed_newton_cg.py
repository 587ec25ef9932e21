"""Runs with a found rate that are resumed end on the bits of unbroken ones."""

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from linear_models import Problem, net_of, trainer_of
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1

RNG = np.random.RandomState(5)
ROWS = RNG.normal(size=(60, 6)).astype('float32') * np.logspace(0, 1.5, 6, dtype='float32')
LABELS = (ROWS @ RNG.normal(size=6) + RNG.logistic(size=60) > 0).astype('float32')
ROWS[:2] *= 40  # so that it goes back sometimes
PROBLEM = Problem('logistic', ROWS, LABELS, 1e-3, batch=20)
SPARSE = dataclasses.replace(PROBLEM, stype='csr', dot=True, weight_stype='row_sparse')
EPOCHS, STOPS = 5, (1, 3, 4)


def fit(module, begin, end, problem=PROBLEM, **kwargs):
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               optimizer='newton_cg', optimizer_params={'wd': problem.wd},
               initializer=mx.init.Zero(), **kwargs)
    return [value.asnumpy() for value in module.get_params()[0].values()]


def new_module(contexts=mx.cpu(), proximal=None, problem=PROBLEM, tol=None):
    return SVRGModule(problem.symbol(), label_names=('label',), update_freq=1, context=contexts,
                      proximal=proximal, tol=tol)


@pytest.mark.parametrize('problem, contexts, proximal', [
    (PROBLEM, mx.cpu(), None), (PROBLEM, [mx.cpu(0), mx.cpu(1)], L1(0.03)),
    (SPARSE, mx.cpu(), None)])
def test_module_resumed_after_an_epoch(tmp_path, problem, contexts, proximal):
    prefix = str(tmp_path / 'model')
    module, pairs = new_module(contexts, proximal, problem), []
    expected = fit(
        module, 0, EPOCHS, problem, epoch_end_callback=[
            mx.callback.module_checkpoint(module, prefix, 1, True),
            lambda *_: pairs.append(len(module._svrg.training.learned.pairs))])
    assert max(pairs) >= 2 and len(pairs) >= 4
    for stop in STOPS:
        resumed = SVRGModule.load(prefix, stop, True, label_names=('label',), context=contexts)
        np.testing.assert_equal(
            fit(resumed, stop, EPOCHS, problem), expected)


def test_other_data_at_a_resume_are_measured_anew(tmp_path):
    """On other rows a snapshot is neither compared with the one before, nor a pair with it."""
    prefix = str(tmp_path / 'model')
    module = new_module()
    fit(module, 0, 5, epoch_end_callback=mx.callback.module_checkpoint(module, prefix, 5, True))
    resumed, fresh = SVRGModule.load(prefix, 5, True, label_names=('label',)), new_module()
    rng = np.random.RandomState(0)
    other = Problem('logistic', 3 + rng.normal(size=(120, 6)), rng.randint(2, size=120), 1e-3,
                    batch=10)
    fit(resumed, 5, 20, other)
    fit(fresh, 0, 20, other)
    np.testing.assert_allclose(resumed.full_objective, fresh.full_objective, rtol=1e-5)


def new_trainer(proximal):
    net, loss = net_of(PROBLEM, mx.init.Constant(1)), gluon.loss.SigmoidBCELoss()
    return net, trainer_of(PROBLEM, net, lambda data, label: loss(net(data), label), None,
                           'newton_cg', (), proximal)


@pytest.mark.parametrize('proximal', [None, L1(0.03)])
def test_trainer_resumed_after_an_epoch(tmp_path, proximal):
    def train(net, trainer, begin, saves=False):
        for epoch, batches in enumerate(trainer.epochs(
                PROBLEM.loader(), EPOCHS, 1, begin_epoch=begin), begin):
            assert not list(batches)
            if saves:
                net.save_parameters(str(tmp_path / ('%d.params' % (epoch + 1))))
                trainer.save_states(str(tmp_path / ('%d.states' % (epoch + 1))))
        return [param.data().asnumpy() for param in net.collect_params().values()]

    net, trainer = new_trainer(proximal)
    expected = train(net, trainer, 0, saves=True)
    assert trainer.result.epochs >= 4
    for stop in STOPS:
        net, trainer = new_trainer(proximal)
        net.load_parameters(str(tmp_path / ('%d.params' % stop)))
        trainer.load_states(str(tmp_path / ('%d.states' % stop)))
        np.testing.assert_equal(train(net, trainer, stop), expected)


@pytest.mark.filterwarnings('ignore:training did not converge')  # float32 may hide that
def test_an_operator_that_is_new_at_a_resume_is_taken_into_account(tmp_path):
    prefix, found = str(tmp_path / 'model'), []
    usual = dataclasses.replace(PROBLEM, rows=ROWS[2:], targets=LABELS[2:])  # it is fast on these
    saved = new_module()
    fit(saved, 0, 2, usual, epoch_end_callback=mx.callback.module_checkpoint(
        saved, prefix, 2, True))
    for module in (SVRGModule.load(prefix, 2, label_names=('label',), proximal=L1(0.03), tol=1e-5),
                   new_module(proximal=L1(0.03), tol=1e-5)):
        fit(module, 2, 60, usual)
        found.append(module.full_objective)
    np.testing.assert_allclose(*found, rtol=1e-6)

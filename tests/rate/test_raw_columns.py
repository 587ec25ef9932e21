"""The metric of the inputs, in a Module that pads, that is trained again, or that lends."""

import mxnet as mx
import numpy as np
import pytest

from bad_input import Data
from dense_metric import assert_moments
from linear_models import Problem, by_module
from problems import Problem as Rows
from sequences import Sequences
from svrg_optimization import SVRGModule

RNG = np.random.RandomState(0)
ROWS = RNG.normal(size=(60, 5)) * np.logspace(-3, 3, 5)
LABELS = (ROWS[:, 2] + RNG.logistic(size=60) > 0) * 1.
PROBLEM = Problem('logistic', ROWS, LABELS, 1e-3, batch=20)


@pytest.mark.exact_data
def test_buckets_have_the_columns_of_all():
    """Batches of each bucket are padded."""
    problem = Sequences()
    module = problem.fit(problem.module(tol=1e-6), 50, optimizer='newton_cg')
    inputs = problem.sums(problem.features)
    block, = module._svrg.training.learned.metric.blocks
    assert_moments(block, inputs)
    design = np.column_stack([inputs, np.ones(len(inputs))])
    expected = np.linalg.lstsq(design, problem.targets, rcond=None)[0]
    found = np.concatenate([value.asnumpy().ravel() for name, value in sorted(
        module.get_params()[0].items(), reverse=True)])
    assert module.has_converged
    np.testing.assert_allclose(design @ found, design @ expected, atol=1e-4)


@pytest.mark.parametrize('fixed, names', [
    ([], [('fc_weight', 'fc_bias')]), (['fc_weight'], []), (['fc_bias'], [('fc_weight',)])])
def test_padding_and_fixed_weights_are_left_out(fixed, names):
    problem, batches = Rows(rows=60), []
    for begin, padding in (0, 0), (20, 7), (40, 20):
        batch = problem.batch(begin, begin + 20, pad=padding)
        batch.data[0][20 - padding:] = np.nan
        batches.append(batch)
    module = problem.bound(20, fixed_param_names=fixed)
    module.init_optimizer(optimizer='newton_cg')
    module.update_full_grads(Data(*batches))
    blocks = module._svrg.training.learned.metric.blocks
    assert [block.names for block in blocks] == names
    for block in blocks:
        assert_moments(block, problem.features[:33])


def test_a_second_fit_measures_other_data():
    module, other = by_module(PROBLEM, 4, None).by, 2 * ROWS + 100
    module.fit(mx.io.NDArrayIter(other, LABELS, 20, label_name='label'), eval_metric=[],
               num_epoch=4)
    assert_moments(module._svrg.training.learned.metric.blocks[0], other)


def test_a_borrowed_optimizer_needs_the_same_parameters():
    lender = by_module(PROBLEM, 2, None, kvstore=None).by
    for bias, says in (True, None), (False, 'shared_module must have the same parameters'):
        module = SVRGModule(Problem('logistic', ROWS, LABELS, bias=bias).symbol(),
                            label_names=('label',))
        module.bind([('data', (20, 5))], [('label', (20,))])
        module.init_params()
        if says:
            with pytest.raises(ValueError, match=says):
                module.borrow_optimizer(lender)
        else:
            module.borrow_optimizer(lender)
            assert module.optimizer_initialized

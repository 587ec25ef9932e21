"""Trainings to their end by both front ends, beside float64: one table of problems and words.

What is called converged is right, whatever the units, and no training ends above its start.
"""

import re
import warnings
from typing import NamedTuple

import mxnet as mx
import numpy as np
import pytest
from sklearn import datasets

from linear_models import Problem, by_gluon, by_module
from newton import mean_loss, outputs_at_optimum, outputs_with_l1
from problems import TWO_DEVICES
from svrg_optimization.proximal import L1

RNG = np.random.RandomState(5)
NORMAL, CHANCE = RNG.normal(size=(1000, 4)), RNG.logistic(size=1000)
ZERO, RANDOM = mx.init.Zero(), mx.init.Uniform(0.01)


class Case(NamedTuple):
    """A problem; whether the word is said, None if it may be; how it is trained."""

    problem: Problem
    is_said: bool = True
    epochs: int = 100
    passes: int = 1000  # at most
    strength: float = 0.  # of L1
    seed: int = 4
    initializer: mx.init.Initializer = RANDOM
    tol: float = 1e-5
    within: float = None  # of outputs beside their spread, whatever is said
    words: str = ''  # of the result
    given: dict = {}


def sgd(rate):
    return {'optimizer': 'sgd', 'params': {'learning_rate': rate}}


def beside(column, loss='logistic', wd=1e-6, dtype='float32'):
    """Return a problem of a column that moves the targets, beside three plain ones."""
    rows = np.column_stack([column, NORMAL[:, 1:]])
    scores = (column - column.mean()) / column.std() + NORMAL[:, 1:] @ [1., -0.5, 0.]
    targets = (scores + CHANCE > 0) * 1. if loss != 'squares' else scores + NORMAL[:, 0]
    return Problem(loss, rows, targets, wd, dtype, 200)


# Columns as they come; float32 hardly resolves some of them.
CASES = {
    'dates in ms': Case(beside(1.6e12 + 8.64e7 * np.arange(1000), 'softmax', 1e-3), None),
    'dates in s': Case(beside(1.6e9 * (1 + 0.02 * RNG.normal(size=1000)))),
    'yyyymmdd': Case(beside(RNG.randint(2000, 2024, 1000) * 1e4 + RNG.randint(
        1, 13, 1000) * 100. + RNG.randint(1, 29, 1000)), None),
    'revenue': Case(beside(1e9 * RNG.lognormal(0, 2, size=1000)), None),
    'phone numbers': Case(beside(RNG.randint(10 ** 9, 10 ** 10, 1000).astype(float))),
    'years': Case(beside(RNG.randint(2007, 2010, 1000).astype(float), 'squares', 0.)),
    'mean 1000': Case(beside(1000 + RNG.normal(size=1000)), None),
    'mean 10000': Case(beside(10000 + RNG.normal(size=1000), 'squares'), None),
    'mean 1e6 in float64': Case(beside(1e6 + RNG.normal(size=1000), 'squares', 0., 'float64')),
    'a constant': Case(Problem('squares', np.column_stack([
        np.full(1000, 1e6), NORMAL]), NORMAL[:, 0])),
    'large counts': Case(Problem('poisson', NORMAL, RNG.poisson(
        np.exp(7 + NORMAL[:, 0] / 3)) * 1.)),
    'strong decay': Case(Problem('squares', NORMAL, NORMAL @ [1., 2, 3, 4] + CHANCE, 1000.),
                         within=1e-4),  # of what the decay leaves of them
    '400 columns': Case(Problem('logistic', RNG.normal(size=(1000, 400)) + 2, (
        CHANCE > 0) * 1., 1e-2))}

# More columns than those whose covariances are used, and fewer rows.
def wide(loss, is_raw):
    rng = np.random.RandomState(0)
    rows = rng.normal(size=(600, 1025))
    scores = rows @ rng.normal(size=1025) / 16
    targets = scores + 0.3 * rng.normal(size=600) if loss == 'squares' else (
        scores + rng.logistic(size=600) > 0) * 1.
    if is_raw:
        rows = rows * 10 ** rng.uniform(-1, 1, 1025) + 10 * rng.normal(size=1025)
    wd = {'squares': 1e-3, 'logistic': 0.3}[loss] * rows.var(axis=0).mean()
    return Case(Problem(loss, rows, targets, wd, batch=100), passes=60, within=1e-4)


CASES.update({'wide, %s, raw %d' % (loss, is_raw): wide(loss, is_raw)
              for loss in ('squares', 'logistic') for is_raw in (False, True)})

# Tables of several units.
PEOPLE = np.column_stack([
    RNG.randint(18, 90, 400), RNG.lognormal(10, 0.7, 400), RNG.lognormal(7, 1, 400),
    RNG.randint(0, 30, 400), RNG.randint(1, 9, 400), RNG.lognormal(0, 1, 400)])
SCALES = RNG.normal(size=(400, 6)) * np.logspace(-3, 4, 6) + np.logspace(-2, 4, 6)


def mixed(rows, loss):
    scores = (rows - rows.mean(axis=0)) / rows.std(axis=0) @ [1, -0.5, 0.3, 0, 0.2, -0.4]
    noisy = scores + CHANCE[:400]
    targets = {'squares': 3 + scores + CHANCE[:400] / 3, 'logistic': (noisy > 0) * 1.,
               'softmax': np.digitize(noisy, [-0.7, 0.7]) * 1.}[loss]
    return Case(Problem(loss, rows, targets, 0. if loss == 'squares' else 1e-6))


CASES.update({'%s, %s' % (name, loss): mixed(rows, loss)
              for name, rows in (('people', PEOPLE), ('scales', SCALES))
              for loss in ('squares', 'logistic', 'softmax')})

# Least squares, ridge and the Lasso in any units; steps of SVRG at a rate come there, too.
MANY = np.random.RandomState(1).normal(size=(400, 5))
TRUTH = np.random.RandomState(0).normal(size=5)
ANSWERS = MANY @ TRUTH + np.random.RandomState(2).normal(size=400) / 2


def squares(targets=ANSWERS, rows=MANY, wd=0., dtype='float32', batch=20, **how):
    return Case(Problem('squares', rows, targets, wd, dtype, batch), **how)


for place, (of_targets, of_rows) in enumerate((
        (1e-6, 1), (1e-3, 1), (1, 1e-3), (1e6, 1), (1, 1e3))):
    dtype = ('float32', 'float64')[place % 2]
    units = 'targets %g, rows %g' % (of_targets, of_rows)
    CASES.update({
        units: squares(ANSWERS * of_targets, MANY * of_rows, passes=40, dtype=dtype),
        units + ', far': squares((ANSWERS + 100) * of_targets, MANY * of_rows, passes=40),
        units + ', L1': squares(ANSWERS * of_targets, MANY * of_rows, passes=60, dtype=dtype,
                                strength=0.1 * of_targets * of_rows)})
    if of_targets != 1:
        CASES[units + ', sgd'] = squares(ANSWERS * of_targets, dtype=dtype, given=sgd(0.1))
for seed in range(3):
    rng = np.random.RandomState(seed)
    CASES['ridge %d' % seed] = squares(  # MXNet rounds wd and 1 / batch_size to float32
        wd=10 ** rng.uniform(-3, 0), dtype='float64', batch=int(rng.randint(3, 120)), tol=1e-12)
CASES.update({
    # A jump to where the gradient is noise is not undone:
    **{'Lasso %d' % seed: squares(strength=0.1, seed=seed, passes=66) for seed in (5, 19, 21)},
    # Near the optimum the loss and the penalty change by much more than their sum, which then is
    # the rounding of the penalty:
    **{'exact Lasso %g' % strength: squares(dtype='float64', tol=1e-12, strength=strength,
                                            passes=30) for strength in (0.1, 0.5)},
    'Lasso of far rows': squares(rows=MANY + 5, dtype='float64', strength=0.1, passes=40),
    'intercept hidden': Case(Problem('squares', np.linspace(1, 1000, 200)[:, None], 3 * np.linspace(
        1, 1000, 200) + 14 + CHANCE[:200]), False, 10, given=sgd(1e-7))})

# The mean of the targets hides their spread, and the rounding of the objective is told.
CASES.update({'targets about %g' % mean: Case(Problem(
    'squares', NORMAL[:300], mean + (NORMAL @ [1., 2, 3, 4] + 0.01 * CHANCE)[:300]), None,
    words=r'\+-') for mean in (7.4e4, 7.4e5, 7.4e6, 7.4e7)})

# To the floor of the precision.
SMALL, NOISE = MANY[:64], np.random.RandomState(3).normal(size=64)
ALIKE = SMALL + 2 * NORMAL[:64, :1]
HEAVY = SMALL * np.where(np.arange(64) % 8, 1, 4)[:, None]
FLOORS = {
    'each row fits': ('squares', SMALL, SMALL @ TRUTH, 0., 0.2),
    'little signal': ('squares', SMALL, NOISE, 0.125, 0.),
    'correlated columns': ('squares', ALIKE, ALIKE @ TRUTH + NOISE, 0.5, 0.),
    'heavy rows': ('squares', HEAVY, HEAVY @ TRUTH + NOISE, 0.5, 0.),
    'three classes': ('softmax', SMALL, np.arange(64) % 3 * 1., 0.125, 0.),
    'L1': ('squares', SMALL, SMALL @ TRUTH + NOISE, 0., 0.2)}
for name, (loss, rows, targets, wd, rate) in FLOORS.items():
    for dtype, tol, within in (('float32', 1e-30, 2e-6), ('float64', None, 1e-13)):
        case = Case(Problem(loss, rows, targets, wd, dtype, 16, bias=False), tol=tol,
                    within=within, strength=0.25 * (name == 'L1'), initializer=ZERO)
        CASES['floor of %s, %s' % (dtype, name)] = case
    if rate:
        CASES['floor by sgd, %s' % name] = case._replace(tol=1e-30, epochs=100, is_said=None,
                                                         given=sgd(rate))

# Losses that are straight far from their targets, or pass through 0, or have kinks.
FEATURES = np.random.RandomState(0).normal(size=(300, 4))
SCORES = FEATURES @ [1., 2, 3, 4]
RESIDUALS = CHANCE[:300] - np.column_stack([FEATURES, np.ones(300)]) @ np.linalg.lstsq(
    np.column_stack([FEATURES, np.ones(300)]), CHANCE[:300], rcond=None)[0]
RAIN = np.maximum(np.random.RandomState(0).normal(size=300) - 1.5, 0)  # most are equal
CASES.update({
    **{'huber from %g away' % far: Case(Problem('huber', FEATURES, SCORES + CHANCE[:300] + far))
       for far in (0, 1e3, -1e4)},
    'huber in float64': Case(Problem('huber', NORMAL, NORMAL @ [
        1., 2, 3, 4] + 1000 + CHANCE, 1e-4, 'float64')),
    **{'gamma %d' % seed: Case(Problem('gamma', FEATURES, np.exp(
        FEATURES @ [0.3, 0.2, 0, 0.1]) * np.random.RandomState(seed).gamma(2, 0.5, 300)))
        for seed in range(3)},
    **{'optimum of 0, shuffle %d' % shuffle: Case(
        Problem('squares', FEATURES * [1, 10, 0.1, 3], RESIDUALS, shuffle=shuffle), passes=40,
        within=1e-4, words="float32's precision") for shuffle in (False, True)},
    **{loss: Case(Problem(loss, FEATURES, RAIN), False, 10) for loss in ('absolute', 'quantile')},
    **{loss: Case(Problem(loss, FEATURES + np.sign(SCORES)[:, None] * [0.1, 0.2, 0.3, 0.4], (
        SCORES > 0) * 1.), False, 60, words='the gradient is 0, as at the optimum of a hinge loss')
       for loss in ('hinge', 'squared hinge')}})

# Where there is no optimum: separable classes, classes without rows, a category of one label.
SIGNS = (NORMAL[:200, 0] > 0) * 1.


def no_class(seed):
    """Return a problem of two classes that no row has: their biases fall for ever."""
    rng = np.random.RandomState(seed)
    targets = (FEATURES @ rng.normal(size=(4, 4)) + rng.gumbel(size=(300, 4))).argmax(axis=1)
    return Problem('softmax', FEATURES, targets * 1., 1e-3, num_outputs=6)


def category(seed, columns):
    rng = np.random.RandomState(seed)
    rows, rare = rng.normal(size=(400, columns)), rng.choice(400, 6, replace=False)
    targets = (rows[:, :5] @ rng.normal(size=5) + rng.logistic(size=400) > 0) * 1.
    targets[rare] = 1
    return Problem('logistic', np.column_stack([rows, np.isin(np.arange(400), rare)]), targets)


WIDE = np.random.RandomState(0).normal(size=(30, 50))
OF_WIDE = Problem('logistic', WIDE, (WIDE[:, 0] > 0) * 1., batch=10)
CASES.update({
    **{'no end: %s of %g, %s' % (loss, targets.mean(), type(start).__name__): Case(
        Problem(loss, NORMAL[:200], targets), False, 30, initializer=start)
        for loss, targets, start in (
            ('logistic', SIGNS, ZERO), ('logistic', SIGNS, RANDOM), ('logistic', SIGNS * 0, ZERO),
            ('logistic', SIGNS * 0 + 1, RANDOM), ('softmax', SIGNS, RANDOM),
            ('softmax', SIGNS * 0, ZERO), ('softmax', SIGNS * 0, RANDOM))},
    **{'no class %d' % seed: Case(no_class(seed), False, 30, seed=seed, tol=0.003,
                                  words='^(?!.*more epochs)') for seed in (7, 9)},
    **{'category %d' % seed: Case(category(seed, columns), False, 8, seed=seed, tol=0.01)
       for seed, columns in ((3, 20), (9, 20), (5, 60), (6, 60), (8, 60))},
    'separable with L1': Case(OF_WIDE, strength=0.01),
    'no end yet with L1': Case(OF_WIDE, False, 6, strength=1e-3, tol=1e-9, words='^(?!.*decay)')})


# Where a step goes too far; data sets, and few passes.
def heavy(seed, loss):
    rng = np.random.RandomState(seed)
    rows = rng.normal(size=(400, 5)).astype('float32')
    scores = rows @ rng.normal(size=(5, 3)) + rng.gumbel(size=(400, 3))
    rows[:4] *= 1000
    labels = {'logistic': scores[:, 0] > 0, 'softmax': scores.argmax(axis=1),
              'huber': scores[:, 0]}[loss]
    return Case(Problem(loss, rows, labels * 1., 1e-3, batch=40, shuffle=True), None, 5,
                initializer=ZERO)


def shipped(load, loss, initializer):
    rows, labels = load(return_X_y=True)
    return Case(Problem(loss, rows, labels * 1., 1e-3, batch=40, shuffle=True), None, 5,
                initializer=initializer)


def rare_large_values():
    rng = np.random.RandomState(0)
    rows = np.column_stack([
        np.where(rng.uniform(size=1000) < 0.1, rng.uniform(3000, 1e5, 1000), 0),
        rng.uniform(17, 90, 1000), *(np.eye(count)[np.minimum(rng.geometric(
            0.3, 1000) - 1, count - 1)] for count in (8, 15, 6))]).astype('float32')
    scores = (rows - rows.mean(axis=0)) / rows.std(axis=0).clip(1e-9) @ rng.normal(size=31) / 3
    return Problem('logistic', rows, (scores + rng.logistic(size=1000) > 0) * 1., 1e-6)


COPIES = np.column_stack([NORMAL, NORMAL[:, :2], NORMAL.sum(axis=1)])
DIGITS = datasets.load_digits(return_X_y=True)
# Biases have no decay, and what they have in common has no curvature: it was noise.
OF_BIASES = Problem('softmax', NORMAL[:300], (NORMAL[:300, :3] + RNG.gumbel(size=(300, 3))).argmax(
    axis=1), 1e-3, batch=30)
CASES.update({
    **{'heavy rows, ' + loss: heavy(seed, loss)
       for seed, loss in ((4, 'logistic'), (1, 'softmax'), (2, 'huber'))},
    'cancer': shipped(datasets.load_breast_cancer, 'logistic', mx.init.Uniform(0.07)),
    'wine': shipped(datasets.load_wine, 'softmax', mx.init.Normal(1)),
    'diabetes': shipped(datasets.load_diabetes, 'squares', mx.init.Xavier()),
    'rare large values': Case(rare_large_values(), None, initializer=ZERO),
    'copies': Case(Problem('logistic', COPIES, (NORMAL[:, 0] + CHANCE > 0) * 1.), passes=40),
    'digits': Case(Problem('softmax', DIGITS[0][:600] / 16, DIGITS[1][:600] * 1., 1e-3),
                   tol=1e-4, passes=300),
    'begins at its optimum': Case(Problem('squares', NORMAL, 0 * CHANCE), strength=0.1, passes=3,
                                  initializer=ZERO),
    **{'biases, tol %g' % tol: Case(OF_BIASES, tol > 1e-6 or None, tol=tol, within=1e-4)
       for tol in (1e-5, 1e-6)}})

# Ways to compute it.
STANDARD = RNG.normal(size=(203, 5)) + 0.5
RAW = {'units': STANDARD * np.logspace(-3, 3, 5), 'far': STANDARD + 100, 'turned': (
    STANDARD * np.logspace(0, -3, 5) @ np.linalg.qr(RNG.normal(size=(5, 5)))[0])}
LABELS = (STANDARD @ RNG.normal(size=5) + RNG.logistic(size=203) > 0) * 1.


def raw(kind, count=203, given=(), **how):
    return Case(Problem('logistic', RAW[kind][:count], LABELS[:count], **{
        'wd': 1e-3, 'batch': 20, **how}), tol=1e-6, given=dict(given))


CASES.update({'%s, %s' % (kind, ', '.join(given)): raw(kind, given=given) for kind in RAW
              for given in ({}, {'context': TWO_DEVICES})})
OF_GLUON = {'hybridized, ' + kind: raw(kind, given={'hybridizes': True}) for kind in RAW}
OF_MODULE = {
    'no kvstore': raw('units', given={'kvstore': None}),
    **{'%s, %s, wd %g, bias %d' % (*how, has_bias): raw(
        'units', 200, stype=how[0], weight_stype=how[1], wd=how[2], dot=True, bias=has_bias)
        for how in (('csr', 'default', 0), ('csr', 'row_sparse', 0), ('csr', 'row_sparse', 1e-3),
                    ('default', 'default', 0)) for has_bias in (False, True)}}


def check(front_end, case, epochs):
    """Train, and compare the word, the outputs and the objective with float64."""
    problem, start = case.problem, None
    np.random.seed(case.seed)
    mx.random.seed(case.seed)
    if not problem.dot:
        start = {'fc_weight': mx.nd.zeros((problem.outputs, problem.rows.shape[1]))}
        case.initializer(mx.init.InitDesc('fc_weight'), start['fc_weight'])
        if problem.bias:
            start['fc_bias'] = mx.nd.zeros(problem.outputs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        by, weight, bias = front_end(
            problem, epochs, case.tol, 1, proximal=L1(case.strength) if case.strength else None,
            initializer=case.initializer, start=start, **case.given)
    rows, targets = (each.astype(problem.dtype).astype('f8')
                     for each in (problem.rows, problem.targets))

    def objective(fc_weight, fc_bias=0.):
        return mean_loss(problem.loss, rows @ fc_weight.T + fc_bias, targets) + (
            problem.wd / 2 * np.square(fc_weight).sum() + case.strength * np.abs(fc_weight).sum())

    outputs, after = rows @ weight.T + bias, objective(weight, bias)
    rounding = np.finfo(problem.dtype).eps * np.sqrt(
        (np.square(rows).sum(axis=0) * weight ** 2).sum() + len(rows) * np.square(bias).sum())
    assert by.full_objective == pytest.approx(after, rel=1e-5, abs=rounding)
    if case.words == r'\+-':
        assert abs(by.result.objective - after) <= by.result.rounding
    if start:
        before = objective(**{name: value.asnumpy().astype('f8') for name, value in start.items()})
        assert after <= before + 1e-7 * abs(before)
    assert by.has_converged != any('training did not converge' in str(each.message)
                                   for each in caught)
    assert case.is_said in (by.has_converged, None), str(by.result)
    assert by.result.passes <= case.passes and re.search(case.words, str(by.result))
    if not by.has_converged and not case.within:
        return
    expected = (outputs_with_l1(problem.loss, rows, targets, case.strength, problem.bias)
                if case.strength
                else outputs_at_optimum(problem.loss, rows, targets, problem.wd, problem.bias))
    if problem.loss == 'softmax':  # does not see what all outputs have in common
        assert not problem.wd or np.abs(weight.mean(axis=0)).max() <= 1e-6 * np.abs(weight).max()
        outputs, expected = (each - each.mean(axis=1, keepdims=True)
                             for each in (outputs, expected))
    spread = np.linalg.norm(expected - expected.mean(axis=0))
    off = np.linalg.norm(outputs - expected) / (
        spread if spread > 1e-5 * np.linalg.norm(targets) else 1.)  # outputs that are all alike
    assert off < (case.within or (2 * case.tol if by.result.reason == 'converged' else 1e-3))


@pytest.mark.parametrize('front_end, name', [
    pytest.param(front_end, name, marks=[pytest.mark.exact_data] * (name == 'a constant') + [
        pytest.mark.slow] * (number % 2 == place and name in CASES))  # one front end is enough
    for place, front_end, others in ((0, by_module, OF_MODULE), (1, by_gluon, OF_GLUON))
    for number, name in enumerate({**CASES, **others})])
def test_a_training_ends_in_right_words_at_right_weights(front_end, name):
    case = {**CASES, **OF_GLUON, **OF_MODULE}[name]
    check(front_end, case, case.epochs)


@pytest.mark.exhaustive
@pytest.mark.parametrize('front_end', [by_module, by_gluon])
@pytest.mark.parametrize('name', [name for name, case in CASES.items() if case.epochs == 5])
def test_none_ends_above_its_start_after_any_number_of_epochs(front_end, name):
    for epochs in range(1, 31):
        check(front_end, CASES[name], epochs)

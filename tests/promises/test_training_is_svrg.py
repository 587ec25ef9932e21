"""Trainings by fit with features of every kind together, against SVRG in float64.

Rates, factors and strengths are exact in float32, as MXNet's operators take no others: float64
problems are compared to 1e-12.
"""

import math

import mxnet as mx
import numpy as np
import pytest

import oracle
from checkpoints import load
from own_operators import Cap
from pairs import in_pairs
from problems import Problem, SparseProblem, rows_of_batch
from sequences import LENGTHS, Sequences
from svrg_optimization import SVRGBucketingModule
from svrg_optimization.proximal import L1, Box, GroupLasso

EPOCHS, UPDATE_FREQ = 5, 2
ONE, TWO = mx.cpu(1), [mx.cpu(1), mx.cpu(2)]  # none is the default context


def alternating(num_update):
    return 0.75 if num_update % 2 else 0.25


def vanishing(num_update):
    return 10. ** (-20 * num_update)  # less than MXNet reads as a float32, and then 0


def with_multipliers(problem, name, **multipliers):
    """Let the symbol of a problem have multipliers, as of wd, by which MXNet decays `w` too."""
    for kind, value in multipliers.items():
        problem.symbol.get_internals()[name]._set_attr(**{'__%s_mult__' % kind: str(value)})
    problem.decayed = ['w'] if 'wd' in multipliers else ['weight']
    problem.lr_mult = {name: multipliers.get('lr', 1.)}
    return problem


PROBLEMS = {  # and their rates
    'linear': (lambda: Problem(rows=37), 2 ** -3),
    'perceptron': (lambda: with_multipliers(Problem('perceptron'), 'fc_weight', lr=0.5), 2 ** -3),
    'large': (lambda: Problem('softmax', features=600, classes=40), 2 ** -10),
    'float64': (lambda: Problem('softmax', 37, 8, dtype='float64'), 2 ** -1),
    'sparse': (lambda: SparseProblem(rows=37), 2 ** -4),
    'sparse, plain': (lambda: SparseProblem(rows=37), 2 ** -4),
    'sparse decayed': (lambda: with_multipliers(SparseProblem(), 'w', wd=1.), 2 ** -4),
    'buckets': (Sequences, 2 ** -6)}
OPERATORS = {
    'none': ({}, {}),
    'L1': ({'weight': L1(0.5)}, {'weight': oracle.soft_threshold(0.5)}),
    'groups': ({'weight': GroupLasso(0.25, axis=1), 'bias': Box(0)},
               {'weight': oracle.block_threshold(0.25, 1), 'bias': oracle.box(0, math.inf)}),
    'own': ({'weight': Cap(0.25)}, {'weight': oracle.box(-np.inf, 0.25)})}


def optimizer_of(kind, rate, size, momentum):
    """Return arguments of fit, and those of the twin."""
    sgd = {'learning_rate': rate, 'momentum': momentum}
    if kind in ('sgd', 'scheduler'):  # MXNet's nag decays twice
        sgd['wd'] = 2 ** -7
    if kind == 'scheduler':
        return {'optimizer_params': {**sgd, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(
            3, 0.5)}}, {**sgd, 'learning_rate': lambda update: rate * 0.5 ** ((update - 1) // 3)}
    if kind == 'instance':  # whose rescale_grad scales the loss, and whose names do not matter
        given = mx.optimizer.SGD(**sgd, rescale_grad=0.5 / size, clip_gradient=1e4,
                                 param_idx2name={5: 'theirs'})
        return {'optimizer': given}, {**sgd, 'rescale': 0.5 / size, 'lr_mult': {}}
    return {'optimizer': kind, 'optimizer_params': sgd}, {**sgd, 'nesterov': kind == 'nag'}


@in_pairs({
    'kind': list(PROBLEMS),
    'context, kvstore, update_on_kvstore': [
        (ONE, None, '1'), (ONE, 'object', '1'), (TWO, 'local', '1'),
        (TWO, 'object', '1'), (TWO, 'device', '1'), (TWO, 'device', '0')],
    'alpha': [1, 0.25, alternating, vanishing],
    'operators': list(OPERATORS),
    'optimizer, stop': [('sgd', None), ('sgd', 3), ('nag', 2), ('scheduler', 2), ('scheduler', 3),
                        ('instance', None)],
    'settings': [{}, {'full_grad_batches': 2}, {'fixed_param_names': ['fc_bias']}]})
@pytest.mark.filterwarnings('ignore:Optimizer created manually')
def test_a_training_with_features_is_svrg(
        monkeypatch, mixtures, prefix, kind, context, kvstore, update_on_kvstore, alpha, operators,
        optimizer, stop, settings):
    """Also where it is stopped, and goes on with a checkpoint.

    Plain steps with an operator are in all rows of a row_sparse weight, also where the gradient has
    only some.
    """
    if 'plain' in kind:
        alpha, settings, operators = 0, {}, 'L1'
    make, rate = PROBLEMS[kind]
    problem, is_sparse = make(), 'sparse' in kind
    size, fixed = 4 if kind == 'buckets' else 8, settings.get('fixed_param_names', [])
    if is_sparse:
        update_on_kvstore, operators = '1', 'L1' if operators == 'groups' else operators
    monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update_on_kvstore)

    names = {'weight': 'w' if is_sparse else 'fc_weight', 'bias': 'fc_bias'}
    proximal, twins = ({names[part]: operator for part, operator in of_parts.items()
                        if names[part] not in fixed} for of_parts in OPERATORS[operators])
    by_rows = is_sparse and (kvstore == 'object' or kvstore and context is TWO)

    def fit(module, begin, end):
        given, sgd = optimizer_of(optimizer, rate, size, 0. if proximal else 0.5)
        problem.fit(module, end, problem.iterator(size), begin_epoch=begin, **given,
                    kvstore=mx.kv.create('local') if kvstore == 'object' else kvstore,
                    sparse_row_id_fn=rows_of_batch if by_rows else None)
        mx.nd.waitall()
        return sgd

    module = problem.module(UPDATE_FREQ, context=context, alpha=alpha, proximal=proximal,
                            **settings)
    sgd = fit(module, 0, stop or EPOCHS)
    if stop:
        module.save_checkpoint(prefix, stop, save_optimizer_states=True)
        own = {'context': context, **settings, **({'alpha': alpha} if callable(alpha) else {}),
               **({'proximal': proximal} if operators == 'own' else {})}  # no file holds these
        module = SVRGBucketingModule.load(
            prefix, stop, problem.sym_gen, max(LENGTHS), True, **own) if (
            kind == 'buckets') else load(prefix, stop, **own)
        fit(module, stop, EPOCHS)
    assert not mixtures, mixtures[0]

    svrg = problem.svrg(size, fixed, alpha, proximal=twins, **{
        'decayed': getattr(problem, 'decayed', ['weight']),
        'lr_mult': getattr(problem, 'lr_mult', {}), **sgd})
    batches = [(rows, pad) for _, rows, pad in problem.plan(size)] if kind == 'buckets' else [
        (rows, 0) for rows in oracle.batches_of(len(problem.features), size)]
    sample = np.concatenate([rows[:size - pad] for rows, pad in batches[:2]]) if (
        'full_grad_batches' in settings) else None
    for epoch in range(EPOCHS):
        if epoch % UPDATE_FREQ == 0:
            svrg.take_snapshot(sample)
        for rows, _ in batches:
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    if alpha:
        problem.assert_full_gradient(module, svrg.full_gradient)
    weight, expected = (weights[names['weight']] for weights in (module.get_params()[0],
                                                                 svrg.weights))
    np.testing.assert_array_equal(weight.asnumpy() == 0, expected == 0)

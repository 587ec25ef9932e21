"""Properties that hold for any network, data, devices and settings, on cases that are drawn.

``HYPOTHESIS_PROFILE=soak`` draws thousands of cases, other ones in each run; by default they are
60, and the same ones in each run.
"""

import contextlib
import os
import types
from fractions import Fraction

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mxnet.executor_manager import _split_input_slice

import oracle
from bad_input import Data
from held_batches import assert_svrg
from problems import Problem
from svrg_optimization import LinearDecay, SVRGModule
from svrg_optimization.module.executor_group import parameters
from svrg_optimization.proximal import L1

ANY = {'deadline': None, 'database': None, 'suppress_health_check': list(HealthCheck)}
settings.register_profile('ci', max_examples=60, derandomize=True, **ANY)
settings.register_profile('soak', max_examples=1000, print_blob=True, **ANY)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'ci'))


def schedule(num_update):
    return 1 / (1 + num_update % 4)


class Own(SVRGModule):
    """A module with a rule of its own, which sees scaled gradients."""

    def _svrg_grads_update_rule(self, current, at_snapshot, full):
        return current - at_snapshot + full


ALPHAS = st.floats(0, 1, width=32, allow_subnormal=False) | st.sampled_from([
    1, 0, Fraction(1, 4), np.float32(0.5), schedule, LinearDecay(0.75, 12), lambda _: 0])
SETTINGS = st.sampled_from([{}, {'proximal': L1(0.3)}, {'cls': Own}])
KVSTORES = st.sampled_from([None, 'local', 'device', 'local object', 'device object'])


def whole(low, high):
    """Draw all numbers alike, where `integers` prefers the ends."""
    return st.sampled_from(range(low, high + 1))


def splits(rows, loads):
    """Tell whether MXNet can split so many rows over devices."""
    try:
        _split_input_slice(rows, loads)
    except ValueError:
        return False
    return True


@st.composite
def trainings(draw):
    """Draw a network, its data, batches and devices, and what trains it."""
    case = types.SimpleNamespace(kind=draw(st.sampled_from(['linear', 'softmax', 'perceptron'])))
    devices = draw(whole(1, 3))
    loads = draw(st.lists(whole(1, 3), min_size=devices, max_size=devices))
    case.work_load_list = draw(st.sampled_from([None, loads]))
    loads = case.work_load_list or [1] * devices
    case.batch_size = draw(whole(sum(loads), 12))
    large = whole(16 * case.batch_size, 18 * case.batch_size)
    case.rows = draw(whole(1, case.batch_size) | whole(1, 45) | large)
    case.features, case.classes = draw(whole(1, 9)), draw(whole(2, 5))
    case.seed = draw(st.integers(0, 2 ** 16))
    case.context = [mx.cpu(device) for device in range(devices)]
    # A last batch of fewer rows than devices is weighted with its padding.
    assume(splits(case.batch_size, loads) and (case.rows - 1) % case.batch_size + 1 >= devices)
    case.own_iterator = draw(st.booleans())
    case.kvstore = draw(KVSTORES)
    case.update_on_kvstore = draw(st.sampled_from('01'))
    # Without a KVStore, the devices of a Module train by themselves.
    assume(case.kvstore or devices == 1)
    case.alpha, case.settings = draw(ALPHAS), dict(draw(SETTINGS))
    case.update_freq, case.epochs = draw(whole(1, 3)), draw(whole(1, 4))
    case.rate = draw(st.floats(0.05, 0.5))
    case.wd = draw(st.sampled_from([0, 0.05]))
    case.momentum = 0 if 'proximal' in case.settings else draw(st.sampled_from([0, 0.5, 0.9]))
    return case


def data_of(case, problem):
    """Return the data, in MXNet's iterator where that can begin with an incomplete batch."""
    size = case.batch_size
    if not case.own_iterator and case.rows >= size:
        return problem.iterator(size)
    return Data(*(problem.batch(rows, pad=max(0, rows[0] + size - case.rows))
                  for rows in oracle.batches_of(case.rows, size)), batch_size=size,
                provide_data=[('data', (size, case.features))], provide_label=[('label', (size,))])


def sgd_of(case, problem):
    """Choose a rate below that at which a batch of the longest row would diverge."""
    longest = 1 + np.square(problem.features).sum(axis=1).max()
    return {'learning_rate': case.rate / longest, 'momentum': case.momentum, 'wd': case.wd}


@contextlib.contextmanager
def environment_of(case):
    """Say who updates; give the KVStore."""
    kind, _, is_object = (case.kvstore or '').partition(' ')
    with pytest.MonkeyPatch.context() as patch:
        mx.nd.waitall()  # its threads read the environment
        patch.setenv('MXNET_UPDATE_ON_KVSTORE', case.update_on_kvstore)
        try:
            yield mx.kv.create(kind) if is_object else case.kvstore
        finally:
            mx.nd.waitall()


@given(trainings())
def test_training_is_svrg(case):
    problem = Problem(case.kind, case.rows, case.features, case.classes, case.seed)
    sgd = sgd_of(case, problem)
    cls = case.settings.pop('cls', SVRGModule)
    proximal = {} if 'proximal' not in case.settings else {
        'proximal': dict.fromkeys(['fc_weight', 'hidden_weight'], oracle.soft_threshold(0.3))}
    svrg = problem.svrg(case.batch_size, alpha=case.alpha, **sgd, **proximal)
    with environment_of(case) as kvstore:
        module = cls(problem.symbol, label_names=('label',), context=case.context,
                     work_load_list=case.work_load_list, update_freq=case.update_freq,
                     alpha=case.alpha, **case.settings)
        _, steps = assert_svrg(problem, module, case.epochs, case.update_freq, svrg, sgd,
                               train_data=data_of(case, problem), kvstore=kvstore)
    for copies in parameters(module).values():
        assert len({copy.asnumpy().tobytes() for copy in copies}) == 1
    for batches in steps.values():
        np.testing.assert_array_equal(batches, oracle.batches_of(case.rows, case.batch_size))
    for name, value in svrg.full_gradient.items() if case.alpha != 0 else ():
        found = sum(share[name].asnumpy().astype(float) for share in module._param_dict)
        np.testing.assert_allclose(found, value, rtol=1e-5,
                                   atol=1e-5 * max(1, np.abs(value).max()), err_msg=name)

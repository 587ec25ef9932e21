"""Sum and FullGradient by themselves: sums, shares, rows and what a checkpoint holds of it."""

import mxnet as mx
import numpy as np
import pytest

from svrg_optimization.core.front_end import Workers
from svrg_optimization.core.full_gradient import FullGradient, Part, Sum, share_out
from svrg_optimization.kvstore.workers import OverDevices

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


def gradients_of_two_devices(rng, count):
    """Random gradients: small and large ones, of two dtypes."""
    shapes = {'small': ((3, 2), 'float32'), 'bias': ((2,), 'float32'), 'wide': ((2,), 'float64'),
              'large': (((1 << 14) + 1,), 'float32')}
    return [{name: [mx.nd.array(rng.normal(size=shape), dtype=dtype, ctx=device)
                    for device in TWO_DEVICES] for name, (shape, dtype) in shapes.items()}
            for _ in range(count)]


def assert_shares(full_gradient, expected):
    for name in expected[0]:
        for share, values in zip(full_gradient.shares, expected):
            np.testing.assert_allclose(share[name].asnumpy(), values[name], rtol=1e-5, atol=1e-5,
                                       err_msg=name)


def sums_of(batches, weights=(1, 1)):
    return [{name: sum(weight * gradients[name][device].asnumpy().astype(float)
                       for gradients in batches) for name in batches[0]}
            for device, weight in enumerate(weights)]


def test_before_any_sum_all_is_zero():
    gradients = {'w': [mx.nd.ones((3, 1)).tostype('row_sparse')],
                 'b': [mx.nd.ones((2,))]}
    total = Sum(gradients, 1, 10)
    assert total.yielded == total.rows == 0 and total.row_counts == {} and total.mean() is None
    full = FullGradient(total)
    assert (full.rows, full.batches, full.batch_size, full.by_row) == (0, 0, 10, [{}])
    counts = Sum(gradients, 1, 10, counted=['w']).row_counts
    assert list(counts) == ['w'] and counts['w'].dtype == np.int64 and not counts['w'].any()


def test_groups_keep_the_order_of_the_parameters():
    """A rule of the user's own is called in this order."""
    names = ['weight%d' % number for number in range(20)]
    groups = Sum({name: [mx.nd.ones((2,))] for name in names}, 1, 10).groups
    assert groups.of(names, fuses=False) == ([], names)
    assert groups.of(names[5:15]) == ([names[5:15]], [])


@pytest.mark.parametrize('weights', [(1, 1), (1, 0.5), (0.25, 1), (0.5, 0.25), (2, 1)])
def test_gradients_are_weighted_in_their_sum(weights):
    batches = gradients_of_two_devices(np.random.RandomState(0), 5)
    total = Sum(batches[0], 2, 10)
    for gradients in batches:
        total.add(Part(None, gradients, weights, 1))
    assert_shares(total, sums_of(batches, weights))


@pytest.mark.parametrize('add_devices', [True, False])
def test_without_a_kvstore_it_is_the_mean_of_each_device(add_devices):
    batches = gradients_of_two_devices(np.random.RandomState(0), 5)
    total = Sum(batches[0], 2, 10)
    for gradients in batches:
        total.add(Part(None, gradients, (1, 1), rows=10, batches=1))
    (OverDevices() if add_devices else Workers()).sum(total)
    full = total.mean()
    expected = [{name: value * 10 / 50 for name, value in values.items()}
                for values in sums_of(batches)]
    if add_devices:
        expected = 2 * [{name: (value + expected[1][name]) / 2
                         for name, value in expected[0].items()}]
    assert (full.rows, full.batches, full.shares_differ) == (50, 5, not add_devices)
    assert_shares(full, expected)
    for name, total in full.totals().items():
        np.testing.assert_allclose(total.asnumpy(), expected[0][name] + expected[1][name],
                                   rtol=1e-5, atol=1e-5)
    for device, share in zip(TWO_DEVICES, full.shares):
        assert all(value.context == device for value in share.values())


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_each_row_is_over_the_part_of_the_batches_that_have_it(dtype):
    """Each row over the part of the devices' batches that have it."""
    rng = np.random.RandomState(0)
    parts = rng.normal(size=(5, 2, 4, 3)) * (rng.rand(5, 2, 4, 1) < 0.6)
    parts[:, :, 2] = 0
    batches = [{'w': [mx.nd.array(part, dtype=dtype, ctx=device).tostype('row_sparse')
                      for part, device in zip(of_batch, TWO_DEVICES)]} for of_batch in parts]
    total = Sum(batches[0], 2, 10, counted=['w'])
    for gradients in batches:
        total.add(Part(None, gradients, (1, 1), rows=8, batches=1))
        total.count_rows(gradients)
    OverDevices().sum(total)
    full = total.mean()
    counts = (parts != 0).any(axis=3).sum(axis=(0, 1))
    assert list(full.row_counts['w']) == list(counts) and counts[2] == 0 and full.rows == 40
    mean = parts.sum(axis=(0, 1)) * 10 / 40
    for device, share, by_row in zip(TWO_DEVICES, full.shares, full.by_row):
        np.testing.assert_allclose(share['w'].asnumpy(), mean / 2, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(by_row['w'].asnumpy(),
                                   mean / 2 * 10 / np.maximum(counts, 1)[:, None],
                                   rtol=1e-5, atol=1e-5)
        assert by_row['w'].dtype == np.dtype(dtype) and by_row['w'].context == device


@pytest.mark.parametrize('saved, devices, batch_size, loss_is_mean', [
    (2, 2, 10, False), (1, 2, 10, False), (2, 1, 10, False), (1, 1, 5, False), (2, 2, 20, False),
    (2, 1, 20, True)])
@pytest.mark.parametrize('shares_differ', [True, False])
def test_it_is_unpacked_on_other_devices_and_in_units_of_other_batches(saved, devices, batch_size,
                                                                       loss_is_mean,
                                                                       shares_differ):
    """On other devices, and in the units of other batches."""
    [gradients] = gradients_of_two_devices(np.random.RandomState(0), 1)
    total = Sum(gradients, saved, 10, loss_is_mean)
    total.add(Part(None, gradients, (1, 1), rows=10, batches=1))
    full = FullGradient(total)
    if not shares_differ and saved == 2:
        for name, arrays in gradients.items():
            share_out(full.shares, name, arrays)
            for share in full.shares:
                share[name][:] = arrays[0]
    full.shares_differ = shares_differ and saved == 2
    packed = full.pack()
    assert len(packed['shares']) == (saved if shares_differ else 1)
    made = FullGradient(Sum(gradients, devices, batch_size, loss_is_mean))
    lacking = [{name: value for name, value in share.items() if name != 'wide'}
               for share in packed['shares']]
    assert made.unpack({**packed, 'shares': lacking}) == {'wide'}
    assert not made.shares[0]['small'].asnumpy().any()
    more = [{**share, 'more': mx.nd.ones(1)} for share in packed['shares']]
    assert made.unpack({**packed, 'shares': more}) == set()
    assert (made.rows, made.batches) == (10, 1)
    units = 1 if loss_is_mean else batch_size / 10
    shares = [{name: value.asnumpy() * units for name, value in share.items()}
              for share in full.shares]
    if saved != devices:
        shares = devices * [{name: sum(share[name] for share in shares) / devices
                             for name in shares[0]}]
    assert_shares(made, shares)


def test_parameters_that_are_not_finite_are_named():
    [gradients] = gradients_of_two_devices(np.random.RandomState(0), 1)
    full = FullGradient(Sum(gradients, 2, 10))
    assert full.nonfinite() == []
    full.shares[1]['bias'][1] = np.inf
    full.shares[0]['large'][7] = np.nan
    assert full.nonfinite() == ['bias', 'large']

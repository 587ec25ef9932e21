"""What NumPy has changed and MXNet's users still write, as in NumPy 1.23."""

import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet.test_utils import almost_equal, assert_almost_equal, same

NUMPY = tuple(map(int, np.__version__.split('.')[:2]))
needed = pytest.mark.skipif(sys.version_info < (3, 12) and NUMPY < (1, 24),
                            reason='MXNet imports by itself')


def test_arrays_compare_as_in_the_tests_of_mxnet():
    array = mx.nd.array([[1, 2], [3, 4]])
    other = array + 1
    assert same(array, array.copy())
    assert not same(array, other)
    assert same(array, array.asnumpy())
    assert np.all(array == array.copy())
    assert not np.all(array == mx.nd.array([[1, 2], [3, 5]]))
    assert not np.any(array == other)
    assert np.array_equal(array, array.copy())
    assert np.allclose(array, array + 1e-7)
    assert almost_equal(array, array + 1e-7)
    assert_almost_equal(array, array + 1e-7)
    np.testing.assert_array_equal(array, array.copy())
    np.testing.assert_allclose(array, array + 1e-7, rtol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'uint8', 'int8', 'int32',
                                   'int64'])
def test_numpy_converts_arrays(dtype):
    array = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
    assert np.asarray(array.asnumpy()).dtype == dtype
    converted = np.array(array, dtype='float64')
    assert (converted.dtype, converted.tolist()) == (np.float64, [[1, 2], [3, 4]])
    converted[:] = 0
    assert array.asnumpy().tolist() == [[1, 2], [3, 4]]
    joined = mx.nd.array([array, array], dtype=dtype)
    assert joined.asnumpy().dtype == dtype
    assert joined.asnumpy().tolist() == [[[1, 2], [3, 4]]] * 2


@needed
def test_numpy_keeps_the_dtype_of_all_kinds_of_arrays():
    dense = mx.nd.array([[1, 0], [0, 4]], dtype='int32')
    for array in (dense, dense.as_np_ndarray(), dense.astype('int64'),
                  dense.astype('float32').tostype('csr'),
                  dense.astype('float32').tostype('row_sparse')):
        converted = np.asarray(array)
        assert (type(converted), converted.dtype) == (np.ndarray, array.dtype)
        assert converted.tolist() == [[1, 0], [0, 4]]
    assert np.asarray(mx.nd.array(3)).shape == ()


@pytest.mark.skipif(NUMPY < (2, 0), reason='copy=False allows a copy')
def test_an_array_without_a_copy_is_refused():
    with pytest.raises(ValueError, match='copy=False'):
        np.asarray(mx.nd.ones((2,)), copy=False)


@pytest.mark.parametrize('values, dtype', [
    ([-1], 'uint8'), ([-1, 300], 'uint8'), ([[1, -1], [2, 300]], 'int8'), ([2 ** 40 + 3], 'int32')])
def test_numbers_out_of_range_wrap(values, dtype):
    expected = np.array(values).astype(dtype).tolist()
    shape = np.shape(values)
    for arrays in (mx.nd, mx.np):
        assert arrays.array(values, dtype=dtype).asnumpy().tolist() == expected
        array = arrays.zeros(shape, dtype=dtype)
        array[:] = values
        assert array.asnumpy().tolist() == expected


def test_numbers_of_no_dtype_are_refused():
    with pytest.raises(TypeError):
        mx.nd.array([2 ** 70], dtype='uint8')
    with pytest.raises(TypeError):
        mx.np.array(['a'], dtype='uint8')


@pytest.mark.parametrize('name, part', [('nanpercentile', 40), ('nanquantile', 0.4)])
def test_quantiles_are_interpolated_as_in_numpy(name, part):
    numbers = [1, 2, 4, np.nan]
    for interpolation in ('lower', 'higher', 'linear'):
        actual = getattr(mx.np, name)(mx.np.array(numbers), part, interpolation=interpolation)
        expected = getattr(np, name)(numbers, part, method=interpolation)
        np.testing.assert_allclose(float(actual), expected, rtol=1e-6)


@needed
def test_csr_arrays_of_scipy_become_csr_ndarrays():
    sparse = pytest.importorskip('scipy.sparse')
    array = sparse.csr_array(np.array([[0, 2.5], [1, 0]]))
    for convert in (mx.nd.sparse.csr_matrix, mx.nd.sparse.array, mx.nd.array):
        converted = convert(array)
        assert (converted.stype, converted.asnumpy().tolist()) == ('csr', [[0, 2.5], [1, 0]])

"""What NumPy and Python have changed and MXNet and its users still write, as in NumPy 1.23."""

import importlib.util
import inspect
import pickle
import sys
import weakref

import mxnet as mx
import numpy as np
import pytest
import scipy.sparse

from svrg_optimization.mxnet_repair import finder, loader

loader.mend_for_users(finder.SWITCH)
NUMPY = tuple(map(int, np.__version__.split('.')[:2]))
IS_NEEDED = sys.version_info >= (3, 12) or NUMPY >= (1, 24)
needed = pytest.mark.skipif(
    not IS_NEEDED, reason='MXNet imports by itself: take Python 3.12 or NumPy 1.24')
silent = pytest.mark.filterwarnings('error' if IS_NEEDED else 'ignore')


def test_modules_of_mxnet_are_what_they_were():
    assert importlib.util.find_spec('mxnet').origin == mx.__file__
    assert importlib.util.find_spec('mxnet.no_such_module') is None
    assert 'def update(self' in inspect.getsource(mx.optimizer.SGD)
    assert mx.recordio.__spec__.cached.endswith('.pyc')
    assert pickle.loads(pickle.dumps(mx.optimizer.SGD(learning_rate=0.5))).lr == 0.5
    with pytest.raises(TypeError) as caught:
        mx.nd.array([1]).reshape((1, 2, 3), no_such_name=1)
    assert caught.traceback[-1].path.samefile(mx.nd.ndarray.__file__)


# Arrays

@pytest.mark.parametrize('dtype', ['float16', 'float64', 'uint8', 'int64'])
def test_numpy_converts_arrays(dtype):
    array = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
    converted = np.array(array, dtype='float64')
    assert (converted.dtype, converted.tolist()) == (np.float64, [[1, 2], [3, 4]])
    joined = mx.nd.array([array, array], dtype=dtype).asnumpy()
    assert (joined.dtype, joined.tolist()) == (dtype, [[[1, 2], [3, 4]]] * 2)


@needed
def test_numpy_keeps_the_dtype_of_all_kinds_of_arrays():
    dense = mx.nd.array([[1, 0], [0, 4]], dtype='int32')
    for array in (dense, dense.as_np_ndarray(), *(
            dense.astype('float32').tostype(kind) for kind in ('csr', 'row_sparse'))):
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
@pytest.mark.parametrize('arrays', [mx.nd, mx.np])
def test_numbers_out_of_range_wrap(values, dtype, arrays):
    expected = np.array(values).astype(dtype).tolist()
    assert arrays.array(values, dtype=dtype).asnumpy().tolist() == expected
    array = arrays.zeros(np.shape(values), dtype=dtype)
    array[:] = values
    assert array.asnumpy().tolist() == expected


@pytest.mark.parametrize('array, value', [(mx.nd.array, [2 ** 70]), (mx.np.array, ['a'])])
def test_numbers_of_no_dtype_are_refused(array, value):
    with pytest.raises(TypeError):
        array(value, dtype='uint8')


@silent
def test_ndarrays_take_axes_as_tuples_and_integers_of_numpy():
    assert mx.nd.array([[1, 2]]).squeeze(axis=(0,)).shape == (2,)
    assert mx.nd.ones((2, 3)).transpose((1, 0)).shape == (3, 2)
    assert mx.nd.array([[1, 2], [3, 4]])[np.array([1, 0]), np.int64(1)].asnumpy().tolist() == [4, 2]


@needed
@silent
@pytest.mark.parametrize('kind', ['csr_matrix', 'csr_array'])
def test_matrices_of_scipy_are_converted(kind):
    given = getattr(scipy.sparse, kind)(np.array([[0, 2.5], [1, 0]]))
    for convert in (mx.nd.sparse.csr_matrix, mx.nd.sparse.array, mx.nd.array):
        converted = convert(given)
        assert converted.asnumpy().tolist() == [[0, 2.5], [1, 0]]
        assert kind == 'csr_matrix' or converted.stype == 'csr'
    assert mx.nd.sparse.array(given).asscipy().toarray().tolist() == [[0, 2.5], [1, 0]]


# mx.np

@pytest.mark.parametrize('name', ['mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate'])
@needed
def test_functions_that_are_gone_from_numpy_are_not_implemented(name):
    with pytest.raises(NotImplementedError, match=r'\b%s\b' % name):
        getattr(mx.np.fallback, name)(1, 2, 3)


@silent
def test_mx_np_keeps_the_names_that_numpy_removed():
    names = [mx.np.NINF, mx.np.PINF, mx.np.PZERO, mx.np.NZERO]
    assert names == [-np.inf, np.inf, 0, 0]
    assert np.signbit(mx.np.NZERO)
    assert np.isnan([mx.np.NaN, mx.np.NAN]).all()
    assert mx.np.bool is bool
    array = mx.np.array([[3., 1.], [2., 2.]])
    if IS_NEEDED:
        assert mx.np.in1d(array, mx.np.array([1., 2.])).asnumpy().tolist() == [
            False, True, True, True]
        assert mx.np.msort(array).asnumpy().tolist() == [[2, 1], [3, 2]]
        assert mx.np.trapz(array).asnumpy().tolist() == [2, 2]
        assert bool(mx.np.alltrue(array))
    assert mx.np.round_(array).asnumpy().tolist() == array.asnumpy().tolist()
    assert mx.np.pad(array, ((1, 1), (1, 1)), mode='constant').shape == (4, 4)
    assert array[array > 1.5].asnumpy().tolist() == [3, 2, 2]
    assert mx.np.ones((2,), dtype=mx.np.bool).dtype == np.bool_


def test_functions_of_numpy_take_arrays_of_mx_np():
    array = mx.np.array([[3., 1.], [2., 2.]])
    for function in (np.mean, np.sum, np.any, np.all, np.prod, np.round, np.exp, np.linalg.norm):
        result = function(array)
        assert isinstance(result, mx.np.ndarray), function
        np.testing.assert_allclose(result.asnumpy(), function(array.asnumpy()), rtol=1e-6)


# Arguments

def test_mxnet_takes_scalars_of_numpy_as_arguments(tmp_path):
    weights = [mx.nd.ones((2,)), mx.nd.ones((2,))]
    sgd = mx.optimizer.SGD(learning_rate=np.float64(0.5), wd=np.float32(0))
    mx.optimizer.get_updater(sgd)([0, 1], [mx.nd.ones((2,))] * 2, weights)
    assert [weight.asnumpy().tolist() for weight in weights] == [[0.5, 0.5]] * 2
    shape = np.int64(1), np.int32(2)
    assert mx.nd.reshape(weights[0], shape=shape).shape == (1, 2)
    symbol = mx.sym.reshape(mx.sym.Variable('x', shape=(np.int64(2),)), shape=shape)
    assert symbol.infer_shape()[1] == [(1, 2)]
    assert 'np.' not in symbol.tojson()
    assert mx.sym.FullyConnected(symbol, num_hidden=1, name='fc').optimize_for(
        'MKLDNN').list_arguments() == ['x', 'fc_weight', 'fc_bias']
    rows = tmp_path / 'rows.csv'
    rows.write_text('1,2\n3,4\n')
    batch = next(mx.io.CSVIter(data_csv='%s?delimiter=,' % rows,
                              data_shape=(np.int64(2),), batch_size=1))
    assert batch.data[0].asnumpy().tolist() == [[1, 2]]


# Metrics: sums in float64, as 0.0 plus a float32 was in NumPy 1

RNG = np.random.RandomState(0)
LABELS = mx.nd.array(RNG.randint(0, 2, 30))
CLASSES = mx.nd.array(RNG.dirichlet([1, 1], 30))
TARGETS, PREDICTIONS = mx.nd.array(RNG.normal(size=(30, 1))), mx.nd.array(RNG.normal(size=(30, 1)))
OF_CLASSES = ['acc', 'ce', 'nll_loss', 'f1', 'mcc', 'pcc', mx.metric.Perplexity(None),
              mx.metric.TopKAccuracy(2), mx.metric.F1(average='micro'),
              mx.metric.MCC(average='micro')]
OF_NUMBERS = ['mse', 'mae', 'rmse', 'loss', 'pearsonr', mx.metric.np(lambda x, y: abs(x - y).max())]


@pytest.mark.parametrize('metric, label, prediction', [
    *((metric, LABELS, CLASSES) for metric in OF_CLASSES),
    *((metric, TARGETS, PREDICTIONS) for metric in OF_NUMBERS)])
def test_many_equal_batches_have_the_value_of_one(metric, label, prediction):
    metric = mx.metric.create([metric])
    metric.update([label], [prediction])
    (_, [of_one]), [inner] = metric.get(), metric.metrics
    for _ in range(199):
        metric.update([label], [prediction])
    for _, [value] in (metric.get(), metric.get_global()):
        np.testing.assert_allclose(value, of_one, rtol=1e-12)
    assert isinstance(inner.sum_metric, float) and isinstance(inner.global_sum_metric, float)
    metric.reset()
    assert np.isnan(metric.get()[1][0])


def test_words_are_counted_beyond_what_float32_can():
    metric = mx.metric.Perplexity(ignore_label=1)
    for words in (3, 2 ** 24 + 6):
        metric.update([mx.nd.array([0, 0, 0, 1])], [mx.nd.ones((4, 2)) / 2])
        assert metric.num_inst == words
        metric.num_inst += 2 ** 24


# Whole features

def test_no_batch_stays_in_memory():
    """In fit and score with callbacks, which get the local variables of these methods."""
    loss = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=1),
                                         mx.sym.var('label'))
    module = mx.mod.Module(loss, label_names=['label'])
    batches, most = [], 0

    def see(param):
        nonlocal most
        assert {'self', 'nbatch', 'eval_metric'} <= set(param.locals)
        batches[:] = [batch for batch in batches if batch() is not None]
        batches.append(weakref.ref(param.locals.get('data_batch') or param.locals['eval_batch']))
        most = max(most, len(batches))

    data = mx.io.NDArrayIter(np.zeros((20, 3)), np.zeros(20), 1, label_name='label')
    module.fit(data, num_epoch=1, batch_end_callback=see, eval_data=data, eval_metric='mse',
               eval_batch_end_callback=see)
    assert most <= 4

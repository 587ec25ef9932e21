"""MXNet on Pythons and NumPys that came after it."""

import builtins
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import sysconfig
import textwrap
import weakref
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
import scipy.sparse

from processes import LIGHT
from svrg_optimization.mxnet_repair import loader
from svrg_optimization.mxnet_repair.finder import SWITCH

NUMPY = tuple(map(int, np.__version__.split('.')[:2]))
IS_NEEDED = sys.version_info >= (3, 12) or NUMPY >= (1, 24)
process = pytest.mark.process
needed = pytest.mark.skipif(
    not IS_NEEDED, reason='MXNet imports by itself: take Python 3.12 or NumPy 1.24')
silent = pytest.mark.filterwarnings('error' if IS_NEEDED else 'ignore')


def python(code, *options, **environment):
    """Run code in a Python of its own."""
    return subprocess.run([sys.executable, *options, '-c', textwrap.dedent(code)], check=False,
                          env={**os.environ, 'PYTHONPATH': LIGHT, **environment},
                          capture_output=True, text=True)


def output_of(code, *options, **environment):
    result = python(code, *options, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize('imports', [
    'import svrg_optimization, mxnet', pytest.param('import mxnet', marks=pytest.mark.slow)])
@process
def test_numpy_stays_as_it_is(imports):
    """After what finds the names of old NumPys, for MXNet alone, has done its work."""
    assert output_of('''
        import sys
        import numpy, numpy.linalg, scipy.sparse
        modules = [numpy, numpy.linalg, scipy, scipy.sparse]
        before = [sorted(vars(module)) for module in modules], numpy.__version__, numpy.any
        %s
        import mxnet.test_utils, mxnet.contrib.text
        # What MXNet's imports of submodules add, as everybody's do.
        added = [set(vars(module)) - set(names) for module, names in zip(modules, before[0])]
        print([name for module, names in zip(modules, added) for name in names
               if module.__name__ + '.' + name not in sys.modules])
        print(before[1:] == (numpy.__version__, numpy.any))''' % imports,
                     PYTHONPATH='') == '[]\nTrue'


@needed
@process
@pytest.mark.slow
def test_own_names_fail_as_numpy_says():
    own, with_mxnet = ([line for line in python('%simport numpy; numpy.float' % imports)
                        .stderr.splitlines() if not line.startswith(' ')]
                       for imports in ('', 'import mxnet; '))
    assert own == with_mxnet
    assert "AttributeError: module 'numpy' has no attribute 'float'" in own[1]


@needed
@process
@pytest.mark.slow
def test_mxnet_can_be_imported_first_or_later_and_without_a_warning(tmp_path):
    """And where its files are compiled."""
    for imports in ('import mxnet', 'import svrg_optimization, mxnet'):
        assert output_of('%s; print(mxnet.nd.ones((1,)).asscalar())' % imports, '-W', 'error',
                         PYTHONPYCACHEPREFIX=str(tmp_path)) == '1.0'


@needed
@process
@pytest.mark.slow
def test_mxnet_cannot_be_imported_when_the_changes_are_switched_off():
    for imports, errors in (
            ('import mxnet', ('AttributeError:', 'ModuleNotFoundError:')),
            ('from svrg_optimization import SVRGModule', ('ImportError: mxnet cannot be imported',
                                                          'ModuleNotFoundError:'))):
        result = python(imports, **{SWITCH: '0'})
        assert result.returncode == 1
        assert any(line.startswith(errors) for line in result.stderr.splitlines())


@pytest.mark.skipif(IS_NEEDED, reason='MXNet does not import by itself: take NumPy=1.23.5')
def test_nothing_is_changed_where_mxnet_imports_by_itself():
    assert mx.nd.ndarray.np is np
    assert vars(mx.nd.ndarray)['__builtins__'] is vars(builtins)


@process
@pytest.mark.slow
def test_mxnet_that_is_imported_already_stays_and_can_be_reloaded():
    assert output_of('''
        import importlib, sys
        import mxnet
        before = list(sys.meta_path)
        import svrg_optimization
        print(sys.meta_path == before)
        importlib.reload(mxnet.metric)
        importlib.reload(mxnet)
        print(mxnet.metric.create('acc').name)''').split() == ['True', 'accuracy']


@process
@pytest.mark.slow
def test_mxnet_can_be_imported_after_an_import_that_failed():
    """What it left of MXNet's modules is forgotten."""
    assert output_of('''
        import sys, types
        left = sys.modules['mxnet.base'] = types.ModuleType('mxnet.base')
        import svrg_optimization, mxnet
        print(mxnet.base is left, sys.modules['mxnet.base'] is mxnet.base)''') == 'False True'


@process
def test_a_missing_mxnet_is_a_module_not_found_error():
    result = python('''
        import os, sys
        import svrg_optimization
        sys.path[:] = [folder for folder in sys.path if os.path.isdir(folder)
                       and 'mxnet' not in os.listdir(folder)]
        import mxnet''')
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'mxnet'"


@process
@pytest.mark.slow
def test_several_threads_import_at_once():
    assert output_of('''
        import threading
        found = []
        def load(name):
            found.append(__import__(name, fromlist=['x']).__name__)
        names = ['mxnet', 'svrg_optimization.svrg_module', 'svrg_optimization.rate.rule']
        threads = [threading.Thread(target=load, args=(name,)) for name in 3 * names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(found))''') == '9'


def test_modules_of_mxnet_are_what_they_were():
    assert importlib.util.find_spec('mxnet').origin == mx.__file__
    assert importlib.util.find_spec('mxnet.no_such_module') is None
    assert 'def update(self' in inspect.getsource(mx.optimizer.SGD)
    assert mx.recordio.__spec__.cached.endswith('.pyc')
    assert pickle.loads(pickle.dumps(mx.optimizer.SGD(learning_rate=0.5))).lr == 0.5
    try:
        mx.nd.array([1]).reshape((1, 2, 3), no_such_name=1)
    except TypeError as error:
        trace = error.__traceback__.tb_next.tb_frame
        assert trace.f_code.co_filename == mx.nd.ndarray.__file__


@process
def test_the_pth_file_is_silent_where_the_package_is_gone():
    """Its .pth file says nothing where the package is gone."""
    line = Path(sysconfig.get_path('purelib'), 'svrg_optimization.pth').read_text()
    assert line.startswith('import ')
    assert len(line.splitlines()) == 1
    result = python('''
        import os, sys
        sys.modules['svrg_optimization'] = None
        del sys.meta_path[0]
        exec(%r)
        assert 'svrg_optimization_start' in str(sys.meta_path[0])
        sys.path[:] = [folder for folder in sys.path if os.path.isdir(folder)
                       and 'mxnet' not in os.listdir(folder)]
        try:
            import mxnet
        except ModuleNotFoundError as error:
            print(error.name)''' % line)
    assert (result.returncode, result.stdout, result.stderr) == (0, 'mxnet\n', '')


@process
def test_start_imports_nothing_more_and_pins_no_copy():
    assert output_of('''
        import sys
        print([name for name in sys.modules if name.partition('.')[0] in
               ('svrg_optimization', 'mxnet', 'numpy')])
        first = sys.meta_path[0]
        import svrg_optimization
        print(first.__module__, first is sys.meta_path[0], len(
            [finder for finder in sys.meta_path if finder.__class__ is type
             and finder.__name__ == first.__name__]))
        ''') == '[]\nsvrg_optimization_start False 1'


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
    for function in (np.linalg.qr, np.linalg.slogdet, np.linalg.svd, np.linalg.eigh):
        for actual, expected in zip(function(array), function(array.asnumpy())):
            np.testing.assert_allclose(np.abs(getattr(actual, 'asnumpy', lambda a=actual: a)()),
                                       np.abs(expected), rtol=1e-4, atol=1e-5)


@silent
def test_ndarrays_take_axes_as_tuples_and_integers_of_numpy():
    assert mx.nd.array([[1, 2]]).squeeze(axis=(0,)).shape == (2,)
    assert mx.nd.ones((2, 3)).transpose((1, 0)).shape == (3, 2)
    assert mx.nd.array([[1, 2], [3, 4]])[np.array([1, 0]), np.int64(1)].asnumpy().tolist() == [4, 2]


@pytest.mark.parametrize('value, text', [
    ((np.float64(0.1), 2), '(0.1, 2)'), ([np.float32(0.1)], '[0.1]'), ((np.int64(3),), '(3,)'),
    ((), '()'), (((np.bool_(True), 'a'), None), "((True, 'a'), None)"), (np.float32(0.25), '0.25'),
    ('text', 'text'),
])
def test_arguments_are_written_as_numpy_1_wrote_them(value, text):
    """NumPy 1 wrote it so, and MXNet's library reads it."""
    assert loader._Text(value) == text


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


@silent
def test_a_record_keeps_several_labels():
    header = mx.recordio.IRHeader(0, np.array([1, 2], 'float32'), 4, 0)
    unpacked, content = mx.recordio.unpack(mx.recordio.pack(header, b'content'))
    assert (unpacked.label.tolist(), content) == ([1, 2], b'content')


@needed
@silent
def test_matrices_of_scipy_are_converted():
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    assert mx.nd.sparse.array(matrix).asscipy().toarray().tolist() == [[1, 0], [0, 1]]
    assert mx.nd.array(matrix).asnumpy().tolist() == [[1, 0], [0, 1]]


@pytest.mark.filterwarnings('ignore:.*label_names')
def test_a_model_can_be_quantized():
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2, name='fc')
    weights = {'fc_weight': mx.nd.ones((2, 3)), 'fc_bias': mx.nd.zeros((2,))}
    data = mx.io.NDArrayIter(np.ones((8, 3)), None, 4)
    _, quantized, _ = mx.contrib.quantization.quantize_model(
        output, weights, {}, calib_mode='entropy', calib_data=data, num_calib_examples=8)
    assert 'fc_weight_quantize' in quantized


@silent
@pytest.mark.parametrize('arrays', [mx.nd, mx.np])
def test_gluon_trains_a_network(arrays):
    if arrays is mx.np:
        mx.npx.set_np()
    try:
        network = mx.gluon.nn.HybridSequential()
        network.add(mx.gluon.nn.Dense(4, in_units=3, activation='relu'),
                    mx.gluon.nn.BatchNorm(in_channels=4), mx.gluon.nn.Dense(1, in_units=4))
        network.initialize(mx.init.Xavier())
        network.hybridize()
        trainer = mx.gluon.Trainer(network.collect_params(), 'adam',
                                   {'learning_rate': np.float64(0.05)})
        features = np.random.RandomState(0).normal(size=(16, 3)).astype('float32')
        targets = arrays.array(features.sum(1, keepdims=True))
        losses = []
        for _ in range(60):
            with mx.autograd.record():
                loss = mx.gluon.loss.L2Loss()(network(arrays.array(features)), targets)
            loss.backward()
            trainer.step(16)
            losses.append(loss.asnumpy().mean())
        assert losses[-1] < 0.1 * losses[0]
    finally:
        mx.npx.reset_np()


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


def test_versions_compare():
    version = loader._version
    assert version('1.26.4') >= version('1.17')
    assert version('2.0.0rc1') > version('1.9')
    assert version('1.5') == version('1.5')
    assert not version('1.5') < version('1.5')

"""What importing the package and MXNet does: to NumPy, to mxnet.contrib, on newer Pythons."""

import builtins
import sys
import sysconfig
import textwrap
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

import svrg_optimization
from processes import printed_by, run_python
from svrg_optimization.mxnet_repair.finder import SWITCH

NUMPY = tuple(map(int, np.__version__.split('.')[:2]))
IS_NEEDED = sys.version_info >= (3, 12) or NUMPY >= (1, 24)
needed = pytest.mark.skipif(
    not IS_NEEDED, reason='MXNet imports by itself: take Python 3.12 or NumPy 1.24')
pytestmark = pytest.mark.process


def output_of(code, *options, **given):
    """Run code in a Python of its own; return what it printed."""
    return printed_by(*options, '-c', textwrap.dedent(code), **given).strip()


FORGET_OURS = '''
for name in list(sys.modules):
    if name.partition('.')[0] == 'svrg_optimization':
        del sys.modules[name]'''
WITHOUT_MXNET = '''
sys.path[:] = [folder for folder in sys.path
               if os.path.isdir(folder) and 'mxnet' not in os.listdir(folder)]'''

CASES = {
    'the package alone imports nothing of MXNet': ('''
import sys, svrg_optimization
print(sorted(name for name in sys.modules if name.startswith('mxnet')))''', '[]'),
    'each way to import finds SVRGModule': ('''
import sys
for statement in (
        'from svrg_optimization import SVRGModule',
        'from svrg_optimization.svrg_module import SVRGModule',
        'import svrg_optimization; SVRGModule = svrg_optimization.svrg_module.SVRGModule',
        'import svrg_optimization; svrg_optimization.svrg_optimizer; '
        'SVRGModule = svrg_optimization.SVRGModule'):
    found = {}
    exec(statement, found)
    print(found['SVRGModule'].__name__)
    exec(%r)''' % FORGET_OURS, '\n'.join(['SVRGModule'] * 4)),
    'an error while MXNet is imported is an ImportError, and no name that we lack': ('''
import sys
class Broken:
    def find_spec(name, path=None, target=None):
        if name == 'mxnet':
            raise AttributeError('no such name in NumPy')
import svrg_optimization
sys.meta_path.insert(0, Broken)
try:
    from svrg_optimization import SVRGModule
except ImportError as error:
    print(error)''', 'mxnet cannot be imported (no such name in NumPy)'),
    'a process that uses MXNet alone has its classes as they are': ('''
import sys
import mxnet as mx
for statement in ('', 'import svrg_optimization', 'from svrg_optimization import SVRGTrainer'):
    exec(statement)
    print('__array__' in vars(mx.nd.NDArray), '__setattr__' in vars(mx.metric.EvalMetric),
          hasattr(mx.kv.create, '__wrapped__'), hasattr(mx.kvstore.base.create, '__wrapped__'))
''', '\n'.join(['False False False False'] * 2 + ['True True True True'])),
    'Python starts with nothing more, and pins no copy of the package': ('''
import sys
print([name for name in sys.modules if name.partition('.')[0] in
       ('svrg_optimization', 'mxnet', 'numpy')])
first = sys.meta_path[0]
import svrg_optimization
print(first.__module__, first is sys.meta_path[0], len(
    [finder for finder in sys.meta_path if finder.__class__ is type
     and finder.__name__ == first.__name__]))''', '[]\nsvrg_optimization_start False 1')}
SLOW = {
    'a server unpickles the optimizer when only what precedes mxnet.module is imported': ('''
import pickle, sys
import mxnet
from svrg_optimization.svrg_optimizer import _SVRGOptimizer
pickled = pickle.dumps(_SVRGOptimizer('sgd', full_keys=['w_full'], momentum=0.9), 0)
del _SVRGOptimizer
%s
for name in ('module', 'mod', 'kv', 'kvstore', 'gluon', 'io', 'model', 'initializer'):
    sys.modules['mxnet.' + name] = None
    vars(mxnet).pop(name, None)
optimizer = pickle.loads(pickled)
print(type(optimizer).__name__, optimizer.momentum,
      'svrg_optimization.svrg_module' in sys.modules)''' % FORGET_OURS,
                                                          '_SVRGOptimizer 0.9 False'),
    'MXNet that is imported already stays, and can be reloaded': ('''
import importlib, sys
import mxnet
before = list(sys.meta_path)
import svrg_optimization
print(sys.meta_path == before)
importlib.reload(mxnet.metric)
importlib.reload(mxnet)
print(mxnet.metric.create('acc').name)''', 'True\naccuracy'),
    'several threads import at once': ('''
import threading
found = []
def load(name):
    found.append(__import__(name, fromlist=['x']).__name__)
names = ['mxnet', 'svrg_optimization.svrg_module', 'svrg_optimization.rate.metric']
threads = [threading.Thread(target=load, args=(name,)) for name in 3 * names]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found))''', '9')}


@pytest.mark.parametrize('name', [*CASES, *(pytest.param(name, marks=pytest.mark.slow)
                                            for name in SLOW)])
def test_an_import_does_what_it_should(name):
    code, expected = {**CASES, **SLOW}[name]
    assert output_of(code) == expected


def test_the_package_lists_its_names_and_refuses_others():
    assert {'SVRGModule', 'svrg_module', 'svrg_optimizer', '__version__'} <= set(
        dir(svrg_optimization))
    with pytest.raises(AttributeError, match='no_such_name'):
        _ = svrg_optimization.no_such_name


@pytest.mark.parametrize('imports', [
    'import svrg_optimization, mxnet', pytest.param('import mxnet', marks=pytest.mark.slow)])
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
                     paths=()) == '[]\nTrue'


@needed
@pytest.mark.slow
@pytest.mark.parametrize('imports, switched_off', [
    ('import mxnet', ('AttributeError:', 'ModuleNotFoundError:')),
    ('import svrg_optimization, mxnet', ('AttributeError:', 'ModuleNotFoundError:')),
    ('from svrg_optimization import SVRGModule; import mxnet',
     ('ImportError: mxnet cannot be imported', 'ModuleNotFoundError:'))])
def test_mxnet_can_be_imported_without_a_warning_unless_that_is_switched_off(
        tmp_path, imports, switched_off):
    """Also where its files are compiled."""
    assert output_of('%s; print(mxnet.nd.ones((1,)).asscalar())' % imports, '-W', 'error',
                     PYTHONPYCACHEPREFIX=str(tmp_path)) == '1.0'
    result = run_python('-c', imports, **{SWITCH: '0'})
    assert result.returncode == 1
    assert any(line.startswith(switched_off) for line in result.stderr.splitlines())


@pytest.mark.skipif(IS_NEEDED, reason='MXNet does not import by itself: take NumPy=1.23.5')
def test_nothing_is_changed_where_mxnet_imports_by_itself():
    assert mx.nd.ndarray.np is np
    assert vars(mx.nd.ndarray)['__builtins__'] is vars(builtins)


def test_the_pth_file_is_silent_where_the_package_is_gone():
    pth = Path(sysconfig.get_path('purelib'), 'svrg_optimization.pth')
    line = pth.read_text()
    # What Python 3.15 reads in its place calls the same.
    module, _, function = pth.with_suffix('.start').read_text().strip().partition(':')
    assert 'import %s' % module in line and '.%s()' % function in line
    result = run_python('-c', '''
import os, sys
sys.modules['svrg_optimization'] = None
del sys.meta_path[0]
exec(%r)
assert 'svrg_optimization_start' in str(sys.meta_path[0])
%s
try:
    import mxnet
except ModuleNotFoundError as error:
    print(error.name)''' % (line, WITHOUT_MXNET))
    assert (result.returncode, result.stdout, result.stderr) == (0, 'mxnet\n', '')


BESIDE_CONTRIB = '''
import sys, warnings
warnings.simplefilter('ignore')
import mxnet as mx
import numpy as np

for package in sys.argv[1:]:
    exec('from %s.svrg_module import SVRGModule' % package)
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('softmax_label')),
                        update_freq=2)
    module.fit(mx.io.NDArrayIter(np.eye(20)[:, :3], np.arange(20), 10), eval_metric='mse',
               num_epoch=3, kvstore=mx.kv.create('local'), initializer=mx.init.One())
    optimizer = module._optimizer
    assert type(optimizer).__module__.startswith(package)
    assert type(optimizer.aux_opt).__module__ == type(optimizer).__module__
    print(package, module.get_params()[0]['fc_weight'].asnumpy().tolist())
for registered in (mx.optimizer.create('_SVRGOptimizer', default_optimizer='sgd'),
                   mx.optimizer.create('_AssignmentOptimizer')):
    assert type(registered).__module__ == min(sys.argv[1:]) + '.svrg_optimizer'  # contrib's, if any
'''


@pytest.mark.slow
def test_modules_train_beside_mxnet_contrib_in_either_order():
    """Each trains as it does alone; the registry's names are ours only where they are free."""
    ours, theirs = 'svrg_optimization', 'mxnet.contrib.svrg_optimization'
    alone, *both = ([line for packages in jobs
                     for line in printed_by('-c', BESIDE_CONTRIB, *packages).splitlines()]
                    for jobs in ([[ours], [theirs]], [[ours, theirs]], [[theirs, ours]]))
    assert [sorted(each) for each in both] == [sorted(alone)] * 2

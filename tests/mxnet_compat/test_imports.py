"""What importing the package does, and what it does to mxnet.contrib."""

import subprocess
import sys
import textwrap

import pytest

import svrg_optimization


def run(code):
    """Run code in a Python of its own and return what it prints."""
    result = subprocess.run([sys.executable, '-c', textwrap.dedent(code)], check=False,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_package_alone_imports_nothing_of_mxnet():
    assert run('''
        import sys, svrg_optimization
        print(sorted(name for name in sys.modules if name.startswith('mxnet')))''') == '[]'


@pytest.mark.parametrize('statement', [
    'from svrg_optimization import SVRGModule',
    'from svrg_optimization.svrg_module import SVRGModule',
    'import svrg_optimization; SVRGModule = svrg_optimization.svrg_module.SVRGModule',
    'import svrg_optimization; svrg_optimization.svrg_optimizer; '
    'SVRGModule = svrg_optimization.SVRGModule',
])
def test_ways_to_import(statement):
    assert run(statement + '; print(SVRGModule.__name__)') == 'SVRGModule'


def test_names_of_the_package():
    assert {'SVRGModule', 'svrg_module', 'svrg_optimizer', '__version__'} <= set(
        dir(svrg_optimization))
    with pytest.raises(AttributeError, match='no_such_name'):
        _ = svrg_optimization.no_such_name


def test_error_while_mxnet_is_imported():
    """It is not taken for a name that the package lacks."""
    assert run('''
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
            print(error)''') == 'mxnet cannot be imported (no such name in NumPy)'


def test_server_can_unpickle_the_optimizer():
    """A parameter server does it when of MXNet only what precedes mxnet.module is imported."""
    assert run('''
        import pickle, sys
        import mxnet
        from svrg_optimization.svrg_optimizer import _SVRGOptimizer
        pickled = pickle.dumps(_SVRGOptimizer('sgd', full_keys=['w_full'], momentum=0.9), 0)
        for name in list(sys.modules):
            if name.startswith('svrg_optimization'):
                del sys.modules[name]
        del _SVRGOptimizer
        for name in ('module', 'mod', 'kv', 'kvstore', 'gluon', 'io', 'model', 'initializer'):
            sys.modules['mxnet.' + name] = None
            vars(mxnet).pop(name, None)
        optimizer = pickle.loads(pickled)
        print(type(optimizer).__name__, optimizer.momentum,
              'svrg_optimization.svrg_module' in sys.modules)''') == '_SVRGOptimizer 0.9 False'


OURS = 'from svrg_optimization.svrg_module import SVRGModule as Ours'
THEIRS = 'from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule as Theirs'
TRAIN = '''
import logging
import warnings
warnings.simplefilter('ignore')
import mxnet as mx
import numpy as np
{imports}

def train(module_class):
    rng = np.random.RandomState(0)
    features = rng.normal(size=(20, 3))
    data = mx.io.NDArrayIter(features, features.dot([1, 2, 3]), 10, label_name='label')
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    loss = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'), name='loss')
    module = module_class(loss, label_names=('label',), update_freq=2)
    module.fit(data, eval_metric='mse', num_epoch=3, initializer=mx.init.One(),
               kvstore=mx.kv.create('local'), optimizer_params={{'learning_rate': 0.1}})
    optimizer = module._optimizer
    assert type(optimizer).__module__.startswith(module_class.__module__.rpartition('.')[0])
    assert type(optimizer.aux_opt).__module__ == type(optimizer).__module__
    return {{name: value.asnumpy().tolist() for name, value in module.get_params()[0].items()}}

print([train(module_class) for module_class in ({classes},)])
'''


def test_beside_mxnet_contrib_in_either_order():
    ours = run(TRAIN.format(imports=OURS, classes='Ours'))
    theirs = run(TRAIN.format(imports=THEIRS, classes='Theirs'))
    assert ours != theirs
    both = '[%s, %s]' % (ours[1:-1], theirs[1:-1])
    assert run(TRAIN.format(imports=OURS + '\n' + THEIRS, classes='Ours, Theirs')) == both
    assert run(TRAIN.format(imports=THEIRS + '\n' + OURS, classes='Ours, Theirs')) == both


def test_registered_where_the_names_are_free():
    created = '''
        import warnings
        warnings.simplefilter('ignore')
        import mxnet as mx
        {}
        {}
        create = mx.optimizer.create
        print(type(create('_SVRGOptimizer', default_optimizer='sgd')).__module__,
              type(create('_AssignmentOptimizer')).__module__)'''
    ours = 'svrg_optimization.svrg_optimizer'
    assert run(created.format(OURS, '')) == ours + ' ' + ours
    theirs = 'mxnet.contrib.' + ours
    assert run(created.format(OURS, THEIRS)) == theirs + ' ' + theirs
    assert run(created.format(THEIRS, OURS)) == theirs + ' ' + theirs

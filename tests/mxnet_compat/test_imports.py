"""What importing the package does, and what it does to mxnet.contrib."""

import ast
import textwrap

import pytest

import svrg_optimization
from processes import printed_by

pytestmark = pytest.mark.process


def run(code):
    """Run code in a Python of its own and return what it prints."""
    return printed_by('-c', textwrap.dedent(code)).strip()


def test_package_alone_imports_nothing_of_mxnet():
    assert run('''
        import sys, svrg_optimization
        print(sorted(name for name in sys.modules if name.startswith('mxnet')))''') == '[]'


def test_each_way_to_import_finds_svrg_module():
    assert run('''
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
            for name in list(sys.modules):
                if name.partition('.')[0] == 'svrg_optimization':
                    del sys.modules[name]''').split() == ['SVRGModule'] * 4


def test_the_package_lists_its_names_and_refuses_others():
    assert {'SVRGModule', 'svrg_module', 'svrg_optimizer', '__version__'} <= set(
        dir(svrg_optimization))
    with pytest.raises(AttributeError, match='no_such_name'):
        _ = svrg_optimization.no_such_name


def test_an_error_while_mxnet_is_imported_is_an_import_error():
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


@pytest.mark.slow
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
import warnings
warnings.simplefilter('ignore')
import mxnet as mx
import numpy as np

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

def registered():
    create = mx.optimizer.create
    return [type(create('_SVRGOptimizer', default_optimizer='sgd')).__module__,
            type(create('_AssignmentOptimizer')).__module__]

{first}
alone = train({of_first}), registered()
{second}
print([alone, train(Ours), train(Theirs), registered()])
'''


@pytest.mark.slow
def test_modules_train_beside_mxnet_contrib_in_either_order():
    """Each trains as it does alone; the registry's names are ours only where they are free."""
    ours_first, theirs_first = (
        ast.literal_eval(run(TRAIN.format(first=first, of_first=name, second=second)))
        for first, name, second in ((OURS, 'Ours', THEIRS), (THEIRS, 'Theirs', OURS)))
    (ours, of_ours), *together = ours_first
    (theirs, of_theirs), *together_too = theirs_first
    assert ours != theirs
    assert together == together_too == [ours, theirs, of_theirs]
    assert of_ours == ['svrg_optimization.svrg_optimizer'] * 2
    assert of_theirs == ['mxnet.contrib.svrg_optimization.svrg_optimizer'] * 2

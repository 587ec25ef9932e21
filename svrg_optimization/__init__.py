"""SVRG, stochastic variance reduced gradient, for MXNet's Module and Gluon.

The names below are imported on first use. A parameter server imports this
package to unpickle the optimizer while MXNet itself is only half imported.
``mxnet.module`` must not be imported at that point.
"""

from .mxnet_repair import finder as _finder

__version__ = '1.0.0'

TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers take it for True
    from . import diagnostics, proximal
    from .alpha import LinearDecay
    from .early_stopping import EarlyStopping
    from .gluon import SVRGTrainer
    from .svrg_bucketing_module import SVRGBucketingModule
    from .svrg_module import SVRGModule

_HOME = {'SVRGModule': 'svrg_module', 'SVRGBucketingModule': 'svrg_bucketing_module',
         'LinearDecay': 'alpha', 'EarlyStopping': 'early_stopping', 'SVRGTrainer': 'gluon'}
_SUBMODULES = ('svrg_module', 'svrg_bucketing_module', 'svrg_optimizer', 'diagnostics', 'proximal',
               'gluon')

__all__ = ['SVRGModule', 'SVRGBucketingModule', 'SVRGTrainer', 'LinearDecay', 'EarlyStopping',
           'diagnostics', 'proximal', '__version__']


_finder.install()


def _import(submodule):
    import importlib  # noqa: PLC0415
    try:
        return importlib.import_module('.' + submodule, __name__)
    except AttributeError as error:
        # Python would report an AttributeError as a name that the package lacks.
        raise ImportError('mxnet cannot be imported (%s)' % error) from error


def __getattr__(name):
    if name in _SUBMODULES:
        return _import(name)
    if name in _HOME:
        return getattr(_import(_HOME[name]), name)
    raise AttributeError('module %r has no attribute %r' % (__name__, name))


def __dir__():
    return sorted(list(globals()) + list(_HOME) + list(_SUBMODULES))

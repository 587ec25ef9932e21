"""MXNet 1.x with NumPy 1.24 and later, and on Python 3.12 and later.

MXNet's C++ library runs there; its Python files ask NumPy for names that it
has no longer, and Python for distutils. So these files are given an
``__import__`` of their own, which answers ``numpy`` with a view: a module
that has all of NumPy's names, and the old ones. The objects are NumPy's own,
and NumPy itself stays as it is for all others.
"""

import builtins
import functools
import re
import sys
import types
import warnings
from importlib.machinery import PathFinder, SourceFileLoader

_RENAMED = {'sometrue': 'any', 'alltrue': 'all', 'product': 'prod', 'round_': 'round',
            'trapz': 'trapezoid'}
_GONE = ['mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate']
# They write an operator's arguments as text.
_WRITERS = ['mxnet._ctypes.ndarray', 'mxnet._ctypes.symbol', 'mxnet.io.io', 'mxnet.symbol.symbol']


def find_spec(name, path, target):
    """Return the spec of a module of MXNet, with a loader that gives it what it asks for."""
    spec = PathFinder.find_spec(name, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


class _Loader(SourceFileLoader):
    """Loader of one module of MXNet."""

    def create_module(self, spec):
        """Return the module, where it needs them with builtins of its own.

        Forget what an import of MXNet that failed has left, too.
        """
        if self.name == 'mxnet':
            for name, module in list(sys.modules.items()):
                if name.startswith('mxnet.') and module is not None:
                    del sys.modules[name]
        if not _is_needed():
            return None
        module = types.ModuleType(self.name)
        vars(module)['__builtins__'] = _builtins(self.name in _WRITERS)
        return module

    def source_to_code(self, data, path, **kwargs):
        """Compile without the warnings that newer Pythons have for MXNet's files."""
        if not _is_needed():
            return super().source_to_code(data, path, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return super().source_to_code(data, path, **kwargs)


@functools.lru_cache(maxsize=None)
def _is_needed():
    import numpy  # noqa: PLC0415
    return sys.version_info >= (3, 12) or _Version(numpy.__version__) >= '1.24'


@functools.lru_cache(maxsize=None)
def _builtins(is_writer):
    own = {'__import__': _import}
    if is_writer:
        own['str'] = _text
    return {**vars(builtins), **own}


def _import(name, *args, **kwargs):
    """Import a module for one of MXNet's."""
    if name == 'distutils.version':
        return _DISTUTILS_VERSION
    module = builtins.__import__(name, *args, **kwargs)
    return _view() if module is sys.modules.get('numpy') else module


@functools.lru_cache(maxsize=None)
def _view():
    """Return a module with NumPy's names and those that MXNet asks it for."""
    import numpy  # noqa: PLC0415
    view = types.ModuleType('numpy')
    names = vars(view)
    names.update(vars(numpy))
    names['__getattr__'] = functools.partial(getattr, numpy)
    names.update(bool=bool, int=int, PZERO=0.0, NZERO=-0.0, PINF=numpy.inf, NINF=-numpy.inf,
                 Inf=numpy.inf, NaN=numpy.nan, NAN=numpy.nan)
    names.update((old, getattr(numpy, new)) for old, new in _RENAMED.items()
                 if hasattr(numpy, new))
    names.update((name, _gone(name)) for name in _GONE)
    names['msort'] = functools.partial(numpy.sort, axis=0)
    if hasattr(numpy, '_core'):
        names.update(core=numpy._core, in1d=_in1d, compat=types.SimpleNamespace(basestring=str))
    return view


def _gone(name):
    def function(*args, **kwargs):
        raise NotImplementedError('NumPy has no function %s any more, which mxnet.numpy.%s '
                                  'needs' % (name, name))
    function.__name__ = name
    return function


def _in1d(ar1, ar2, *args, **kwargs):
    import numpy  # noqa: PLC0415
    return numpy.isin(numpy.ravel(ar1), ar2, *args, **kwargs)


def _text(value):
    """Return the text of an argument, with the scalars in it as NumPy 1 wrote them."""
    if isinstance(value, list):
        return '[%s]' % ', '.join(map(_text_in_list, value))
    if isinstance(value, tuple):
        return '(%s%s)' % (', '.join(map(_text_in_list, value)), ',' * (len(value) == 1))
    return str(value)


def _text_in_list(value):
    import numpy  # noqa: PLC0415
    if isinstance(value, (list, tuple, numpy.number, numpy.bool_)):
        return _text(value)
    return repr(value)


@functools.total_ordering
class _Version:
    """Stand-in of the classes of distutils.version, which Python 3.12 has not got."""

    def __init__(self, text):
        self.version = [int(number) for number in re.findall(r'\d+', text)]

    def __eq__(self, other):
        return self.version == _Version.of(other).version

    def __lt__(self, other):
        return self.version < _Version.of(other).version

    __hash__ = None

    @classmethod
    def of(cls, version):
        """Return a version, which may be given as text."""
        return cls(version) if isinstance(version, str) else version


_DISTUTILS_VERSION = types.ModuleType('distutils.version')
_DISTUTILS_VERSION.LooseVersion = _DISTUTILS_VERSION.StrictVersion = _Version

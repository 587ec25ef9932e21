"""MXNet 1.x with NumPy 1.24 and later, and on Python 3.12 and later.

MXNet's C++ library runs there, but its Python files use names that NumPy has
removed, and distutils, which Python has removed. These files therefore get a
separate ``__import__``, which returns a view for ``numpy``: a module with all of
NumPy's names and the old ones. The objects are NumPy's own. All other code sees
NumPy unchanged.
"""

import builtins
import ctypes
import functools
import os
import re
import sys
import threading
import types
import warnings
from importlib.machinery import PathFinder, SourceFileLoader

_RENAMED = {'sometrue': 'any', 'alltrue': 'all', 'product': 'prod', 'round_': 'round',
            'trapz': 'trapezoid'}
_GONE = ['mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate']
_IMPORTS_LATER = 'mxnet.numpy_dispatch_protocol'  # distutils, when it is called
# Modules that write the arguments of operators as text, and how NumPy 2 writes scalars in lists.
_WRITERS = ['mxnet._ctypes.ndarray', 'mxnet._ctypes.symbol', 'mxnet.io.io', 'mxnet.symbol.symbol']
_SCALAR = re.compile(r'\bnp\.(?:\w+\((.*?)\)|(True|False)_)')


def find_spec(name, path, target):
    """Return the spec of a module of MXNet, with a loader that supplies what it lacks."""
    spec = PathFinder.find_spec(name, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


class _Loader(SourceFileLoader):
    """Loader of one module of MXNet."""

    def source_to_code(self, *args, **kwargs):
        """Compile without the warnings of newer Pythons about MXNet's files."""
        with warnings.catch_warnings():
            if _is_needed():
                warnings.simplefilter('ignore')
            return super().source_to_code(*args, **kwargs)

    def exec_module(self, module):
        """Run the module, with builtins of its own if MXNet needs them, and mend it."""
        if _is_needed():
            vars(module)['__builtins__'] = _builtins(self.name)
        super().exec_module(module)
        if _is_needed() and self.name != _IMPORTS_LATER:  # others run without a replacement
            vars(module)['__builtins__']['__import__'] = builtins.__import__
        for mended in _MENDED, _mended_for_users:
            if self.name in mended:
                _mend(module, *mended[self.name])


def _mend(module, name, mend):
    parent, before = sys.modules.get(module.__name__.rpartition('.')[0]), getattr(module, name)
    after = mend(before)
    for owner in module, parent:  # which may have imported it from the module
        if getattr(owner, name, None) is before:
            setattr(owner, name, after)


def mend_for_users(switch):
    """Mend what only users of SVRG need, in imported modules and in those imported later.

    The environment variable `switch` is 0 where MXNet shall stay as it is.
    """
    if not _mended_for_users and os.environ.get(switch) != '0':
        _mended_for_users.update(_FOR_USERS)
        for name in _FOR_USERS.keys() & sys.modules.keys():
            _mend(sys.modules[name], *_FOR_USERS[name])


def _with_zeros(create):
    """Wrap the creation of a KVStore, so that a server keeps float64 values."""
    is_server = os.environ.get('DMLC_ROLE') == 'server'
    return _calling(create, lambda kvstore: _zero_free_memory()) if is_server else create


def _with_exit(create):
    """Wrap the creation of a KVStore: a worker that fails must not wait for the others."""
    def prepare(kvstore):
        if os.environ.get('DMLC_ROLE') == 'worker':
            from .kvstore import prepare_exit  # noqa: PLC0415
            prepare_exit(kvstore)
    return _calling(create, prepare)


def _calling(create, after):
    @functools.wraps(create)
    def wrapper(*args, **kwargs):
        kvstore = create(*args, **kwargs)
        after(kvstore)
        return kvstore
    return wrapper


def _zero_free_memory():
    """Take, fill with zeros and free the blocks that malloc gives next, up to 1 KiB.

    MXNet's server object is allocated in one of them. It has a flag that makes the server round all
    values to float32, and MXNet never sets it, so the memory must hold 0 there. If it does not,
    `warn_of_rounding` warns.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = []
    for size in range(24, 1033, 16):
        for _ in range(7):  # which glibc keeps of each size
            blocks.append(libc.malloc(ctypes.c_size_t(size)))
            ctypes.memset(blocks[-1], 0, size)
    for block in blocks:
        libc.free(block)


class _Thread(threading.Thread):
    """Thread with a name that MXNet's launcher calls and Python has removed."""

    isAlive = threading.Thread.is_alive  # noqa: N815


def _with_array(ndarray_class):
    """Let NumPy convert NDArrays: it takes them for endless sequences, since 1.24 for none."""
    def array(self, dtype=None, copy=None):
        import numpy  # noqa: PLC0415
        if copy is False:
            raise ValueError('copy=False: NumPy gets no array of an NDArray without a copy')
        return numpy.asarray(self.asnumpy(), dtype)
    ndarray_class.__array__ = array
    return ndarray_class


def _with_float64(metric_class):
    """Let a metric keep sums and counts in float64, as 0.0 plus a float32 was in NumPy 1."""
    import numpy  # noqa: PLC0415

    def set_attribute(self, name, value):
        is_short = isinstance(value, (numpy.float16, numpy.float32))
        super(metric_class, self).__setattr__(name, numpy.float64(value) if is_short else value)
    metric_class.__setattr__ = set_attribute
    return metric_class


def _with_fork(multiprocessing):
    """Return a view that forks: on Linux Python 3.14 and later do not by default.

    Processes that are not forked need a main guard, cannot have lambdas, and hang
    with NDArrays.
    """
    if multiprocessing.get_all_start_methods()[0] != 'forkserver':
        return multiprocessing
    fork = multiprocessing.get_context('fork')
    return _view_of(multiprocessing, Process=fork.Process, Pool=fork.Pool,
                    get_context=lambda: fork)


# What changes of NumPy or Python have broken, or makes servers round, by module.
_MENDED = {'mxnet.kvstore.base': ('create', _with_zeros),
           **{'dmlc_tracker.' + name: ('Thread', lambda thread: _Thread)
              for name in ('local', 'mesos', 'mpi', 'slurm', 'ssh', 'tracker', 'yarn')},
           'mxnet.gluon.data.dataloader': ('multiprocessing', _with_fork)}
_FOR_USERS = {'mxnet.kvstore.base': ('create', _with_exit),
              'mxnet.ndarray.ndarray': ('NDArray', _with_array),
              'mxnet.metric': ('EvalMetric', _with_float64)}
_mended_for_users = {}


@functools.lru_cache(maxsize=None)
def _is_needed():
    import numpy  # noqa: PLC0415
    return sys.version_info >= (3, 12) or _version(numpy.__version__) >= [1, 24]


def _builtins(name):
    import numpy  # noqa: PLC0415
    own = {'__import__': _import}
    if sys.version_info >= (3, 13):
        own['locals'] = _locals
    if name in _WRITERS and _version(numpy.__version__) >= [2]:
        own['str'] = _Text
    return {**vars(builtins), **own}


def _locals():
    """Return the caller's local variables without its last BatchEndParam.

    ``Module.fit`` puts its ``locals()`` into each BatchEndParam. Since Python 3.13
    this is a new dict in each call, so each BatchEndParam would keep the one
    before it, and all batches would stay in memory.
    """
    return {name: value for name, value in sys._getframe(1).f_locals.items()
            if type(value).__name__ != 'BatchEndParams'}


def _import(name, *args, **kwargs):
    """Import a module on behalf of a module of MXNet."""
    if name == 'distutils.version':
        return _DISTUTILS_VERSION
    module = builtins.__import__(name, *args, **kwargs)
    if module is sys.modules.get('numpy'):
        return _numpy_view()
    if module is sys.modules.get('scipy') and name == 'scipy.sparse':
        return _scipy_view()
    return module


def _view_of(module, **names):
    view = types.ModuleType(module.__name__)
    vars(view).update(vars(module), __getattr__=functools.partial(getattr, module), **names)
    return view


@functools.lru_cache(maxsize=None)
def _numpy_view():
    import numpy  # noqa: PLC0415
    names = {old: getattr(numpy, new) for old, new in _RENAMED.items() if hasattr(numpy, new)}
    names.update(dict.fromkeys(_GONE, _gone))
    names.update(bool=bool, int=int, PZERO=0.0, NZERO=-0.0, PINF=numpy.inf, NINF=-numpy.inf,
                 Inf=numpy.inf, NaN=numpy.nan, NAN=numpy.nan,
                 msort=functools.partial(numpy.sort, axis=0))
    if hasattr(numpy, '_core'):
        names.update(core=numpy._core, compat=types.SimpleNamespace(basestring=str), array=_array,
                     in1d=lambda one, *others, **how: numpy.isin(numpy.ravel(one), *others, **how))
    return _view_of(numpy, **names)


@functools.lru_cache(maxsize=None)
def _scipy_view():
    import scipy.sparse  # noqa: PLC0415
    # MXNet only asks what is an instance of it.
    csr = types.SimpleNamespace(csr_matrix=(scipy.sparse.csr_matrix, scipy.sparse.csr_array))
    return _view_of(scipy, sparse=_view_of(scipy.sparse, csr=csr))


def _gone(*args, **kwargs):
    raise NotImplementedError('NumPy has no functions %s any more' % ', '.join(_GONE))


def _array(value, dtype=None, **kwargs):
    """Return an array. Numbers out of the range of its dtype wrap, as in NumPy 1."""
    import numpy  # noqa: PLC0415
    try:
        return numpy.array(value, dtype, **kwargs)
    except OverflowError:
        return numpy.array(value, **kwargs).astype(dtype)


class _TypeOfText(type):
    def __call__(cls, value=''):
        """Return the text of an argument, with NumPy's scalars written as NumPy 1 writes them."""
        text = str(value)
        return _SCALAR.sub(r'\1\2', text) if isinstance(value, (list, tuple)) else text

    def __instancecheck__(cls, value):
        return isinstance(value, str)


class _Text(metaclass=_TypeOfText):
    """Replacement of str for the modules that write arguments."""


def _version(text):
    """Return what replaces the classes of distutils.version, which Python 3.12 lacks."""
    return [int(number) for number in re.findall(r'\d+', text)]


_DISTUTILS_VERSION = types.ModuleType('distutils.version')
_DISTUTILS_VERSION.LooseVersion = _DISTUTILS_VERSION.StrictVersion = _version

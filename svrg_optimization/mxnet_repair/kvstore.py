"""Workarounds for MXNet's KVStore, and the state of this process that they need.

MXNet has no function for what they do. ``loader.py`` calls `prepare_exit` for each KVStore of
a worker.
"""

import atexit
import contextlib
import functools
import gc
import io
import os
import re
import sys
import types
import weakref

import numpy as np
from mxnet import kv as kv_of_mxnet
from mxnet import ndarray as nd
from mxnet.base import MXNetError, _notify_shutdown, py_str

from .._warn_once import warn

has_joined = False  # whether this worker has ever had a KVStore with servers
_connected = weakref.WeakSet()  # KVStores of this process that have servers
_opened_by_name, _never_freed = [], []


# A process has one connection to servers: MXNet waits forever when a second one is created.

def open_distributed(kind):
    """Return this worker's connection to the servers, which is created the first time."""
    if 'DMLC_PS_ROOT_URI' not in os.environ:
        raise ValueError('kvstore %r needs a cluster, whose scheduler the environment names '
                         '(DMLC_PS_ROOT_URI): start the script with a launcher' % kind)
    kvstore = next(iter(_connected), None)
    if kvstore is None:
        kvstore = kv_of_mxnet.create(kind)
        _opened_by_name.append(kvstore)
        atexit.register(_opened_by_name.clear)
    if kvstore.type != kind:
        raise ValueError('kvstore must be %r, as this process is connected to its servers '
                         'already, not %r' % (kvstore.type, kind))
    return kvstore


# MXNet calls the updater through ctypes, which reports an error, for example a Ctrl-C, and
# forgets it. Where it comes in MXNet's own part of the call, only a missing update shows it.

def set_updater(kvstore, updater):
    """Set the updater of a KVStore of this process; its errors wait for `raise_updater_error`."""
    # Not attributes of the KVStore: a function that refers to it would keep its memory.
    seen = vars(kvstore).setdefault('seen_updates', types.SimpleNamespace(errors=[], updates=0))

    def update(*args):
        try:
            updater(*args)
            seen.updates += 1
        except BaseException as error:
            seen.errors.append(error)

    kvstore._set_updater(update)
    kvstore._updater = updater


def raise_updater_error(kvstore):
    """Raise the first error of a KVStore's updater since the last call, if there is any."""
    seen = getattr(kvstore, 'seen_updates', None)
    if seen and seen.errors:
        error = seen.errors[0]
        seen.errors.clear()
        raise error


def push_all(kvstore, values):
    """Push arrays by key, and raise the error of a KVStore's updater, if there is any."""
    seen = getattr(kvstore, 'seen_updates', None)
    wanted = seen and seen.updates + len(values)
    for priority, (key, arrays) in enumerate(values.items()):
        kvstore.push(key, arrays, priority=-priority)
    raise_updater_error(kvstore)
    if seen and seen.updates < wanted:
        raise KeyboardInterrupt


# MXNet has no function that sets a weight: a pushed value goes to the optimizer, and may be
# compressed on its way.

def set_weights(kvstore, weights, gradients):
    """Set the weights that have gradients, by name and device, in a KVStore of this process."""
    updater = kvstore._updater
    set_updater(kvstore, lambda key, _, stored: weights[py_str(key)][0].copyto(stored))
    try:  # of other numbers compression would keep what it has not sent
        push_all(kvstore, {name: [each.zeros_like() for each in arrays]
                           for name, arrays in gradients.items()})
    finally:
        set_updater(kvstore, updater)


# Servers number keys in the order of their creation. No function returns the number of a key.

def number_of_first_key(kvstore, key):
    """Create a key on the servers, where this worker has none yet, and return its number there.

    MXNet shows the number only in the error about a push of another size. That error
    does not occur in a KVStore with compression, for which this raises a ValueError.
    """
    value = nd.zeros((1,))
    kvstore.init(key, value)
    kvstore.pull(key, out=value)
    value.wait_to_read()
    try:
        kvstore.push(key, nd.zeros((2,)))
    except MXNetError as error:
        number = re.search(r'Key is (\d+)', str(error))
        if number is None:
            raise
        return int(number.group(1))
    raise ValueError('kvstore must not compress gradients: it would compress all that is pushed')


def warn_of_rounding(kvstore, key, value):
    """Warn if servers have made float32 of the value of a new key: see loader.py."""
    stored = value.zeros_like()
    kvstore.pull(key, out=stored)
    rounded = value.astype('float32').astype('float64')  # others may have pushed already
    if (stored == rounded).min().asscalar():
        warn('the servers of %r make float32 of float64 values: start them where this package is '
             'installed, on Linux' % kvstore.type)


# Compression can be switched on at any time, and no function tells whether it is on.

def compresses(kvstore, key, contexts):
    """Tell whether a KVStore of this process changes what is pushed to a key of two numbers."""
    if 'device' not in kvstore.type:  # only these compress
        return False
    pushed = np.array([2.0 ** -10, 2.0 ** -11], np.float32)  # not both can be the threshold
    values = [nd.array(pushed, ctx=context) for context in contexts]
    kvstore.push(key, values)
    raise_updater_error(kvstore)
    kvstore.pull(key, out=values)
    return bool((values[0].asnumpy() != len(contexts) * pushed).any())


# A worker that ends waits for all others, even after an exception. It also drops pushes that are
# not sent yet, if its KVStore outlives the exit handlers. With this repair it ends at once after
# an exception, and otherwise when all its pushes are sent.

def prepare_exit(kvstore):
    """Let this process leave its cluster, after an exception, without a wait that has no end."""
    global has_joined  # noqa: PLW0603
    if 'dist' not in kvstore.type or not hasattr(kvstore, 'handle'):  # it has no servers
        return
    has_joined = True
    _connected.add(kvstore)
    if getattr(sys.excepthook, 'func', None) is not _leave:
        atexit.register(nd.waitall)
        sys.excepthook = functools.partial(_leave, sys.excepthook)


def _leave(report, kind, error, traceback):
    """Report an exception and end the process as Python would, but wait for no other worker."""
    try:
        report(kind, error, traceback)
    finally:
        if not (hasattr(sys, 'ps1') or sys.flags.inspect):  # unless an interactive session goes on
            leave(130 if issubclass(kind, KeyboardInterrupt) else 1)


def leave(code):
    """End the process as Python does at a SystemExit, but wait for no other worker."""
    status = code if isinstance(code, int) else 1
    if status is not code:
        print(code, file=sys.stderr)
    _never_freed.extend(_connected)  # freeing them would wait for the others
    try:
        # Both wait for pushes that other workers may never answer.
        atexit.unregister(nd.waitall)
        atexit.unregister(_notify_shutdown)
        atexit._run_exitfuncs()
        for opened in gc.get_objects():
            if issubclass(type(opened), (io.TextIOWrapper, io.BufferedWriter)):
                with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                    opened.flush()
    finally:
        os._exit(status)

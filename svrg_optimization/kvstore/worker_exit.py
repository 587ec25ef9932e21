"""Exit of a worker: at once after an exception, and otherwise when all its pushes are sent.

MXNet itself lets a worker wait for all others at its exit, after an exception too,
and drops pushes that are not sent yet where the KVStore outlives the exit handlers.
"""

import atexit
import contextlib
import functools
import gc
import io
import os
import sys
import weakref

from mxnet import ndarray as nd
from mxnet.base import _LIB, _notify_shutdown, check_call

from .kinds import has_servers

LAUNCHER = 'SVRG_OPTIMIZATION_LAUNCHER'  # which sets it
_kvstores, _kept = weakref.WeakSet(), []


def prepare_exit(kvstore):
    """Let this process leave its cluster without a wait that may have no end.

    Only in a job of our launcher, which ends the servers, may a worker leave
    before the others without an exception, as with ``sys.exit(1)``. In other jobs
    the servers end after MXNet's barrier at exit.
    """
    if not has_servers(kvstore):
        return
    _kvstores.add(kvstore)
    if LAUNCHER in os.environ:
        check_call(_LIB.MXKVStoreSetBarrierBeforeExit(kvstore.handle, 0))
    if getattr(sys.excepthook, 'func', None) is not _leave:
        atexit.register(nd.waitall)
        sys.excepthook = functools.partial(_leave, sys.excepthook)


def _leave(report, kind, error, traceback):
    """Report an exception and end the process as Python would, but wait for no other worker."""
    if hasattr(sys, 'ps1') or sys.flags.inspect:  # somebody goes on after it
        report(kind, error, traceback)
        return
    try:
        report(kind, error, traceback)
    finally:
        leave(130 if issubclass(kind, KeyboardInterrupt) else 1)


def leave(code):
    """End the process as Python does at a SystemExit, but wait for no other worker."""
    status = code if isinstance(code, int) else 1
    if status is not code:
        print(code, file=sys.stderr)
    _kept.extend(_kvstores)  # to free them is to wait
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

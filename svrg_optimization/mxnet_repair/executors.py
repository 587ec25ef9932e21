"""Executors that see the weights as they are, and one without its outputs."""

import contextlib
import ctypes
import os

from mxnet import ndarray as nd
from mxnet.base import _LIB, check_call

# Of an executor without gradients MXNet fuses the operators for oneDNN. A fused operator keeps the
# weights of its first run, whatever is written to their arrays later.
_SWITCH = 'MXNET_SUBGRAPH_BACKEND'


@contextlib.contextmanager
def without_fusion():
    """Let executors that are bound in the block have MXNet's single operators.

    It does nothing if the user has chosen a MXNET_SUBGRAPH_BACKEND.
    """
    if _SWITCH in os.environ:
        yield
        return
    nd.waitall()  # MXNet's threads read the environment
    try:
        os.environ[_SWITCH] = 'default'
        yield
    finally:
        os.environ.pop(_SWITCH, None)


def forward(executor, is_train):
    """Run an executor forward.

    Its own method also asks for the outputs, which takes longer than the layers of a small network.
    """
    check_call(_LIB.MXExecutorForward(executor.handle, ctypes.c_int(bool(is_train))))

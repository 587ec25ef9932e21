"""Executors that see the weights as they are."""

import contextlib
import os

from mxnet import ndarray as nd

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

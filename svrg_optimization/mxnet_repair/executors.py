"""Executors that see the weights as they are."""

import contextlib
import os

from mxnet import ndarray as nd

# Of an executor without gradients MXNet fuses the operators for oneDNN. A fused operator keeps the
# weights of its first run, whatever is written to their arrays later.
_SWITCHES = {'MXNET_SUBGRAPH_BACKEND': 'default', 'MXNET_SUBGRAPH_VERBOSE': '0'}


@contextlib.contextmanager
def without_fusion():
    """Let executors that are bound in the block have MXNet's single operators.

    It does nothing if the user has chosen a MXNET_SUBGRAPH_BACKEND.
    """
    if next(iter(_SWITCHES)) in os.environ:
        yield
        return
    given = {name: value for name, value in _SWITCHES.items() if name not in os.environ}
    nd.waitall()  # MXNet's threads read the environment
    try:
        os.environ.update(given)
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)

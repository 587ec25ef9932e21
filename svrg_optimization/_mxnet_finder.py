"""Finder of MXNet's modules, cheap enough for every import of the package.

The rest is in _mxnet_compat.py, which is imported together with MXNet. An
installed package has a line in svrg_optimization.pth, which Python runs before a
script begins: a finder that imports this one, so that a script may import MXNet
first.
"""

import os
import sys

SWITCH = 'SVRG_OPTIMIZATION_MXNET_COMPAT'


class MXNetFinder:
    """Finder of mxnet, its launcher's dmlc_tracker and the modules below them, in sys.meta_path."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of a module of MXNet, and None for all others."""
        if name.partition('.')[0] not in ('mxnet', 'dmlc_tracker') or os.environ.get(SWITCH) == '0':
            return None
        from . import _mxnet_compat  # noqa: PLC0415
        return _mxnet_compat.find_spec(name, path, target)


def install():
    """Put the finder first, unless MXNet has been imported."""
    if 'mxnet' in sys.modules:
        return
    # It replaces the finder of Python's start, and the one of another copy of the package.
    others = [finder for finder in sys.meta_path
              if getattr(finder, '__module__', None) != __name__]
    sys.meta_path[:] = [MXNetFinder, *others]

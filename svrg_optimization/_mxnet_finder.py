"""Finder of MXNet's modules, cheap enough for every start of Python.

The rest is in _mxnet_compat.py, which is imported together with MXNet. An
installed package also has the text of this file in svrg_optimization.pth. Python
runs that before a script begins, so the script may import MXNet first.
"""

import os
import sys

SWITCH = 'SVRG_OPTIMIZATION_MXNET_COMPAT'


class MXNetFinder:
    """Finder of mxnet and the modules below it, in sys.meta_path."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of a module of MXNet, and None for all others."""
        if name != 'mxnet' and not name.startswith('mxnet.'):
            return None
        try:
            from . import _mxnet_compat  # noqa: PLC0415
        except ModuleNotFoundError as error:
            if error.name != __package__:
                raise
            return None  # only the .pth file of the package is left
        return _mxnet_compat.find_spec(name, path, target)


def install():
    """Put the finder first, unless it is switched off or MXNet has been imported."""
    if 'mxnet' in sys.modules or os.environ.get(SWITCH) == '0':
        return
    # A finder from the start of Python belongs to the installed package, perhaps another copy.
    others = [finder for finder in sys.meta_path
              if getattr(finder, '__module__', None) != __name__]
    sys.meta_path[:] = [MXNetFinder, *others]

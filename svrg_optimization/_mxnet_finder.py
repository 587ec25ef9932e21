"""The finder of MXNet's modules, which every start of Python can afford.

All else is in _mxnet_compat.py, and is imported with MXNet. An installed
package has this file's text in svrg_optimization.pth too, which Python runs
before a script begins, so that it may import MXNet first.
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
            return None  # the package is gone, but for its .pth file
        return _mxnet_compat.find_spec(name, path, target)


def install():
    """Put the finder first, unless it is switched off or MXNet is imported already."""
    if 'mxnet' in sys.modules or os.environ.get(SWITCH) == '0':
        return
    # At Python's start it was that of the installed package, which may be another copy.
    others = [finder for finder in sys.meta_path
              if getattr(finder, '__module__', None) != __name__]
    sys.meta_path[:] = [MXNetFinder, *others]

"""The finder of MXNet's modules, which every start of Python can afford.

All else is in _mxnet_compat.py, and is imported with MXNet. Installed, the
package has a svrg_optimization.pth, by which Python adds the finder before a
script begins, so that it may import MXNet first.
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
        from . import _mxnet_compat  # noqa: PLC0415
        return _mxnet_compat.find_spec(name, path, target)


def install():
    """Put the finder first, unless it is switched off or MXNet is imported already."""
    if 'mxnet' in sys.modules or os.environ.get(SWITCH) == '0':
        return
    # At Python's start it was that of the installed package, which may be another copy.
    others = [finder for finder in sys.meta_path
              if getattr(finder, '__module__', None) != __name__]
    sys.meta_path[:] = [MXNetFinder, *others]


def forget_package():
    """Let the first import of a script find the package anew, as that of any other does.

    So the copy that sys.path has first is used, and not the one that Python's
    start found.
    """
    for name in [name for name in sys.modules if name.partition('.')[0] == __package__]:
        del sys.modules[name]

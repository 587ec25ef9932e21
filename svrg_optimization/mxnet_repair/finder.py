"""Finder of MXNet's modules, cheap enough for every start of Python.

The rest is in loader.py, which is imported together with MXNet. An installed
package has a copy of this file, svrg_optimization_start.py, beside
svrg_optimization.pth, whose one line Python runs before a script begins. So a
script may import MXNet before this package. The copy imports nothing of the
package until the script imports MXNet, and only then is it decided which
installation of the package is used.
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
        try:
            from svrg_optimization.mxnet_repair import loader  # noqa: PLC0415
        except ModuleNotFoundError as error:
            if error.name not in ('svrg_optimization', 'svrg_optimization.mxnet_repair'):
                raise
            return None  # the package is gone, and the copy was left behind
        return loader.find_spec(name, path, target)


def install():
    """Put the finder first, in place of others of its kind, unless MXNet has been imported."""
    if 'mxnet' not in sys.modules:
        sys.meta_path[:] = [MXNetFinder, *(finder for finder in sys.meta_path if getattr(
            finder, '__name__', None) != MXNetFinder.__name__)]

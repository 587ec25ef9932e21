"""Finder of MXNet's modules, cheap enough for every start of Python.

The rest is in loader.py, which is imported together with MXNet. An installed
package has a copy of this file, svrg_optimization_start.py, beside
svrg_optimization.pth, whose one line Python runs before a script begins. So a
script may import MXNet first, and the start imports nothing of the package:
which copy of it is used is found out when somebody imports MXNet.
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
            return None  # the copy is left, the package gone
        return loader.find_spec(name, path, target)


def install():
    """Put the finder first, in place of others of its kind, unless MXNet has been imported."""
    if 'mxnet' not in sys.modules:
        sys.meta_path[:] = [MXNetFinder, *(finder for finder in sys.meta_path if getattr(
            finder, '__name__', None) != MXNetFinder.__name__)]

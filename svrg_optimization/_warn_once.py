"""Warnings at the line of the user's code, and such as appear once."""

import sys
import warnings

_NOT_THE_USERS = 'svrg_optimization', 'mxnet'


def warn(message):
    """Warn of a message at the line that called this package, also through MXNet."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get('__name__', '').split('.')[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class WarnOnce:
    """Function that warns of each message, or of each kind of message, only once."""

    def __init__(self):
        self._warned = set()

    def __call__(self, message, kind=None):
        """Warn of a message, unless it or another of its kind has been warned of."""
        if (kind or message) not in self._warned:
            self._warned.add(kind or message)
            warn(message)

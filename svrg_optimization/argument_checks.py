"""Checks of arguments that several methods take."""

import numbers

from mxnet.base import _as_list


def check_callbacks(name, callbacks):
    """Raise a TypeError where an argument is neither None nor a callable nor a list of these."""
    for callback in _as_list(callbacks) if callbacks is not None else []:
        if not callable(callback):
            raise TypeError('%s must be callable, a list of callables or None, not %r'
                            % (name, callbacks))


def check_epoch(name, epoch):
    """Raise a TypeError or a ValueError where an argument is no number of an epoch."""
    if isinstance(epoch, bool) or not isinstance(epoch, numbers.Integral):
        raise TypeError('%s must be an int of 0 or more, not %r' % (name, epoch))
    if epoch < 0:
        raise ValueError('%s must be an int of 0 or more, not %d' % (name, epoch))

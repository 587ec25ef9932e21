"""Checks of arguments, shared by several methods."""

import contextlib
import numbers

import numpy as np
from mxnet.base import _as_list


def check_callbacks(name, callbacks):
    """Raise a TypeError if an argument is not None, a callable or a list of callables."""
    for callback in _as_list(callbacks) if callbacks is not None else []:
        if not callable(callback):
            raise TypeError('%s must be callable, a list of callables or None, not %r'
                            % (name, callbacks))


def checked_bool(name, value, or_none=False):
    """Return a bool of Python or NumPy as a bool; raise a TypeError for all else."""
    if value is None and or_none:
        return None
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError('%s must be %sTrue or False, not %r'
                        % (name, 'None, ' if or_none else '', value))
    return bool(value)


def checked_count(name, value, allowed='an int of 1 or more'):
    """Return an integer of Python or NumPy as an int; raise an error unless it is 1 or more."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError('%s must be %s, not %r' % (name, allowed, value))
    if value < 1:
        raise ValueError('%s must be %s, not %d' % (name, allowed, value))
    return int(value)


def as_number(value):
    """Return a real number of Python or NumPy, or the one in a 0-d array; None for all else."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        return None
    return value


def checked_positive(name, value):
    """Return a number above 0 as a float, or None; raise an error for all else."""
    number = as_number(value)
    if value is not None and number is None:
        raise TypeError('%s must be None or a number above 0, not %r' % (name, value))
    if number is not None and not 0 < number < np.inf:
        raise ValueError('%s must be None or a number above 0, not %r' % (name, value))
    return number and float(number)


def check_epoch(name, epoch):
    """Raise a TypeError or a ValueError if an argument is not an int of 0 or more."""
    if isinstance(epoch, bool) or not isinstance(epoch, numbers.Integral):
        raise TypeError('%s must be an int of 0 or more, not %r' % (name, epoch))
    if epoch < 0:
        raise ValueError('%s must be an int of 0 or more, not %d' % (name, epoch))


@contextlib.contextmanager
def errors_named(name):
    """Let errors about ``train_data`` within the block name another argument instead."""
    try:
        yield
    except (TypeError, ValueError) as error:
        subject, _, rest = str(error).partition(' ')
        if subject == 'train_data':
            error.args = ('%s %s' % (name, rest),)
        raise

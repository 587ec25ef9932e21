"""Checks of arguments, shared by several methods."""

import numbers
import reprlib

import numpy as np

SMALLEST = 1e-37  # near the least number that float32 has in full precision


def checked_bool_or_none(name, value):
    """Return None, or a bool of Python or NumPy as a bool; raise a TypeError for all else."""
    if not (value is None or isinstance(value, (bool, np.bool_))):
        raise TypeError('%s must be None, True or False, not %r' % (name, value))
    return value if value is None else bool(value)


def checked_number(name, value, allowed, is_allowed, kind=numbers.Real):
    """Return a real number as an int or a float; raise an error if it is not allowed.

    Parameters
    ----------
    name : str
        Name of the argument.
    value : object
        Its value.
    allowed : str
        What is allowed, for the message.
    is_allowed : callable
        Tells whether a number is.
    kind : type
        Kind of number.

    Raises
    ------
    TypeError
        If it is no such number.
    ValueError
        If it is not allowed.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError('%s must be %s, not %r' % (name, allowed, value))
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not is_allowed(number):
        raise ValueError('%s must be %s, not %r' % (name, allowed, value))
    return number


def checked_count(name, value, allowed='an int of 1 or more', least=1):
    """Return an integer as an int; raise an error unless it is 1 or more."""
    return checked_number(name, value, allowed, lambda count: count >= least, numbers.Integral)


def check_epoch(name, epoch):
    """Raise a TypeError or a ValueError if an argument is not an int of 0 or more."""
    checked_count(name, epoch, 'an int of 0 or more', least=0)


def check_iterator(name, data):
    """Raise a TypeError if an argument is not an iterator over data."""
    if not all(callable(getattr(data, method, None)) for method in ('reset', '__iter__')):
        raise TypeError('%s must be a DataIter, as mx.io.NDArrayIter(data, label, batch_size) '
                        'makes of arrays, not %s' % (name, reprlib.repr(data)))
    if hasattr(data, 'num_data') and hasattr(data, 'label'):  # an NDArrayIter, which does not check
        rows = {each: array.shape[0] for each, array in data.data + data.label}
        if len(set(rows.values())) > 1:
            raise ValueError('%s must have as many rows of each input, and not %s' % (name, rows))

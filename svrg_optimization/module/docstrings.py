"""Docstrings of methods that override MXNet's: ``help`` shows MXNet's text below ours."""

import inspect

_PACKAGE = __name__.partition('.')[0]
_HEADING = 'Notes\n-----\n'


def with_docstrings_of_mxnet(cls):
    """Append MXNet's docstring to each public method that overrides one of MXNet's.

    The text is copied when the class is created, so that none of it is in this
    repository. It is a literal block under the heading "Notes". The bar before
    each line keeps its headings and examples from being read as ours.

    Parameters
    ----------
    cls : type
        Class with bases of this package and of MXNet. Methods that two classes
        inherit from one base are extended once.

    Returns
    -------
    type
        The same class.
    """
    for base in cls.__mro__:
        if base.__module__.partition('.')[0] == _PACKAGE:
            for name, member in vars(base).items():
                function = getattr(member, '__func__', member)  # of a classmethod
                if inspect.isfunction(function) and not name.startswith('_'):
                    _append(function, _overridden(cls, name))
    return cls


def _overridden(cls, name):
    """Return MXNet's function of a name, None if it has none."""
    for base in cls.__mro__:
        if base.__module__.startswith('mxnet.') and name in vars(base):
            member = vars(base)[name]
            return getattr(member, '__func__', member)
    return None


def _append(function, overridden):
    if overridden is None:
        return
    own, text = function.__doc__, overridden.__doc__
    if not own or not text or _HEADING in own:  # -OO drops docstrings
        return
    lines = ['    | ' + line for line in inspect.cleandoc(text).splitlines()]
    function.__doc__ = '%s\n\n%s``%s`` of MXNet says::\n\n%s\n' % (
        inspect.cleandoc(own), _HEADING, overridden.__qualname__,
        '\n'.join(line.rstrip() for line in lines))

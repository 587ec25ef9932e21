"""Casts of MXNet's mixed precision in a Symbol."""


def has_casts(symbol):
    """Tell whether a Symbol has casts that its JSON may go without.

    MXNet leaks three times the JSON when it takes them out, also where there are none.
    """
    return '"op": "amp_' in symbol.tojson(remove_amp_cast=False)

"""What features need of each other: one check, with one wording for each reason."""

ALL_ROWS, SNAPSHOTS = 'all rows', 'snapshots'
_WORDINGS = {ALL_ROWS: 'must be None with %s, as samples are noise',
             SNAPSHOTS: 'must not be 0 with %s, as there is no full gradient then'}
COMPRESSED = 'it would compress the full gradient too'  # a KVStore with compression


def require(need, features, argument, given):
    """Raise a ValueError if 'tol' or 'newton_cg' needs what the value of an argument rules out.

    Parameters
    ----------
    need : str
        ALL_ROWS or SNAPSHOTS.
    features : dict of str to object
        Settings, and the optimizer 'newton_cg', by name; None or False if one is not used.
    argument, given : str, object
        Name of the argument and its value.
    """
    for name in ('tol', 'newton_cg'):
        if features.get(name):
            raise ValueError('%s %s, and not %r' % (argument, _WORDINGS[need] % name, given))

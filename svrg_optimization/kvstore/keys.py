"""Names of the keys that a module has in a KVStore."""

_SUFFIX = '_full'



def unused_key(name, suffix, taken):
    """Add a suffix to a name, repeatedly while the result is taken."""
    key = name + suffix
    while key in taken:
        key += suffix
    return key


def full_gradient_keys(param_names, taken=()):
    """Name the KVStore key of each parameter's full gradient.

    Parameters
    ----------
    param_names : list of str
        All parameters of the module.
    taken : iterable of str
        Further keys of the KVStore.

    Returns
    -------
    dict of str to str
        From parameter name to key: ``<name>_full``, with the suffix repeated
        where a parameter or another key has that name already.
    """
    taken = {*taken, *param_names}
    keys = {}
    for name in param_names:
        keys[name] = unused_key(name, _SUFFIX, taken)
        taken.add(keys[name])
    return keys


class KVStoreKeys:
    """What a module calls its values in a KVStore.

    Parameters
    ----------
    param_names : list of str
        All parameters of the module, in its order.
    trainable : iterable of str
        Those that have a full gradient.
    counted : iterable of str
        Those of which workers count how often each row occurs.
    taken : iterable of str
        Keys that the KVStore has already.
    first : str, optional
        The first key, where it has been created.

    Attributes
    ----------
    params : list of str
        The parameters, which are called by their names.
    full : dict of str to str
        From parameter to its full gradient.
    row_counts : dict of str to str
        From counted parameter to how often each of its rows occurs.
    tally : str
        What the workers tell each other of their passes.
    first : str
        Created before all others, to learn the servers' numbers.
    """

    def __init__(self, param_names, trainable, counted=(), taken=(), first=None):
        self.params = list(param_names)
        taken = {*taken, *param_names}
        self.full = full_gradient_keys(trainable, taken)
        taken.update(self.full.values())
        self.row_counts = {name: unused_key(name, '_rows', taken) for name in counted}
        taken.update(self.row_counts.values())
        self.tally = unused_key('svrg', '_tally', taken)
        self.first = first or unused_key('svrg', '_first', taken)

    @property
    def assigned(self):
        """The keys whose values are summed and not stepped, in the order of their creation."""
        return [*self.full.values(), *self.row_counts.values(), self.tally]

    @property
    def on_servers(self):
        """All keys, in the order of their creation."""
        return [self.first, *self.params, *self.assigned]

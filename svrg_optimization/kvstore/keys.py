"""Names of a module's keys in a KVStore."""

from ..svrg_optimizer import _SUFFIX


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
        Other keys of the KVStore.

    Returns
    -------
    dict of str to str
        For each parameter its key, ``<name>_full``. The suffix is repeated
        while a parameter or another key has that name.
    """
    taken = {*taken, *param_names}
    keys = {}
    for name in param_names:
        keys[name] = unused_key(name, _SUFFIX, taken)
        taken.add(keys[name])
    return keys


class KVStoreKeys:
    """Keys of one module in a KVStore.

    Parameters
    ----------
    param_names : list of str
        All parameters of the module, in its order.
    trainable : iterable of str
        Parameters with a full gradient.
    counted : iterable of str
        Parameters whose rows are counted.
    taken : iterable of str
        Keys that the KVStore already has.
    first : str, optional
        The first key, if it has been created already.

    Attributes
    ----------
    params : list of str
        Keys of the parameters: their names.
    full : dict of str to str
        For each trainable parameter the key of its full gradient.
    row_counts : dict of str to str
        For each counted parameter the key of its row counts.
    tally : str
        Key of PassCounts.
    first : str
        Key that servers get first, to learn how they number keys. In a local
        KVStore it shows whether gradients are compressed.
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
    def summed(self):
        """Keys whose values are summed and not updated: all but those of the parameters."""
        return [self.first, *self.full.values(), *self.row_counts.values(), self.tally]

    @property
    def on_servers(self):
        """All keys in the order of their creation."""
        first, *others = self.summed
        return [first, *self.params, *others]

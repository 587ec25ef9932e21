"""Names of a module's keys in a KVStore."""

from ..svrg_optimizer import _SUFFIX


class KVStoreKeys:
    """Keys of one module in a KVStore.

    A key is a name with a suffix, ``<name>_full`` for a full gradient. The
    suffix is repeated while another key or a parameter has that name.

    Attributes
    ----------
    full : dict of str to str
        For each trainable parameter the key of its full gradient.
    gathered : str
        Key of the numbers that each worker gives all others.
    total : str
        Key of an array that workers sum; it is created where it is needed.
    first : str
        Key that servers get first, to learn how they number keys and whether
        they get compressed gradients.
    created : set of str
        Those that were created where they were needed.
    """

    def __init__(self, param_names, trainable):
        taken = set(param_names)

        def new(name, suffix):
            key = name + suffix
            while key in taken:
                key += suffix
            taken.add(key)
            return key

        self.full = {name: new(name, _SUFFIX) for name in trainable}
        self.gathered = new('svrg', '_gathered')
        self.first = new('svrg', '_first')
        self.total = new('svrg', '_total')
        self.created = set()

    @property
    def summed(self):
        """Keys whose values are summed and not updated: all but those of the parameters."""
        return [self.first, *self.full.values(), self.gathered]


class NumberedKeys:
    """Keys of a Gluon trainer in a distributed KVStore: numbers after those of its parameters."""

    def __init__(self, names):
        self.gathered, self.first, self.total = len(names), len(names) + 1, len(names) + 2
        self.full = {name: len(names) + 3 + place for place, name in enumerate(names)}

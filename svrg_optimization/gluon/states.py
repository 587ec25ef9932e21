"""The file of a trainer's states: those of Trainer, and the snapshot."""

import hashlib
import io
import pickle
import re

from mxnet import MXNetError, util
from mxnet.optimizer import Optimizer

from .random_numbers import RandomNumbers

_COUNTS = 'taken_at', 'is_stale', 'num_update', 'num_taken', 'has_converged'


def after_states(states, snapshot):
    """Return what follows the states in a file, where Trainer stops: the snapshot, a checksum."""
    content = pickle.dumps(snapshot)
    return content + _checksum(states + content)


def _checksum(content):
    return b'sha256:' + hashlib.sha256(content).hexdigest().encode()


def unpickled(saved):
    """Return the states of Trainer in a file, and those of SVRG, None if it has none."""
    content, is_signed, _ = saved.rpartition(b'sha256:')
    if is_signed and content + _checksum(content) != saved:
        raise ValueError('it does not end with its checksum')
    file, svrg = io.BytesIO(content if is_signed else saved), None
    content = _load(file)
    if isinstance(content, dict) and set(content) == {'trainer', 'svrg'}:  # up to version 2.0
        content, svrg = _load(io.BytesIO(content['trainer'])), content['svrg']
    elif is_signed:
        svrg = pickle.load(file)
    if file.read(1):
        raise ValueError('it does not end with its checksum')
    if not isinstance(content, tuple) or not isinstance(content[-1], Optimizer):
        raise ValueError('it was not saved by SVRGTrainer or Trainer')
    return pickle.dumps(content), svrg  # as this process can load them, with set_np or without


def _load(file):
    """Unpickle what was saved with ``npx.set_np()`` or without."""
    place = file.tell()
    try:
        return pickle.load(file)
    except MXNetError:  # which loads arrays only as they were saved
        file.seek(place)
        with util.np_array(False), util.np_shape(not util.is_np_shape()):
            return pickle.load(file)


def packed(reference, snapshot):
    """Return a snapshot as values that can be pickled, with parameters by their place."""
    names = reference.names
    content = {'counts': {name: getattr(snapshot, name) for name in _COUNTS},
               'names': names, 'loss': reference.rows.kind, 'values': None,
               'random': reference.numbers.state(), 'was_random': reference.numbers.were_drawn,
               'jump': snapshot.jump}
    if snapshot.is_active:
        facts, kinds = snapshot.full_gradient.pack()
        places = {name: place for place, name in enumerate(names)}
        content.update(
            facts=facts,
            values={places[name]: arrays[0].asnumpy()
                    for name, arrays in reference.values().items()},
            full_gradient={kind: {places[name]: share.asnumpy() for name, share in shares.items()}
                           for kind, shares in kinds.items() if shares})
    return content


def restoring(reference, snapshot, content):
    """Return a function that restores the snapshot that `packed` returned.

    Until it is called nothing has changed. An error says that the snapshot is
    of other parameters.
    """
    names, counts = reference.names, content['counts']
    facts_of_snapshot = {'averaged_at': counts['num_update'], 'jump': content.get('jump'),
                         **{name: counts[name] for name in _COUNTS if name in counts}}
    if _structure(content.get('names', names)) != _structure(names):  # 1.0.0 saved no names
        raise ValueError('it has a snapshot of other parameters, or of these in another order: '
                         '%s, and not %s. Give the blocks the prefixes that they had'
                         % (content['names'], names))

    def by_name(of_places):
        return {names[place]: value for place, value in of_places.items()}

    kind = reference.rows.kind or content.get('loss')
    numbers = RandomNumbers(content['random'], content.get('was_random', False))
    values, full_gradient = by_name(content['values'] or {}), None
    if content['values'] is not None:
        facts, shares = content['facts'], content['full_gradient']
        reference.allocate(values)
        full_gradient = reference.new_full_gradient(facts['batch_size'])
        saved = {name: value.shape for name, value in values.items()}
        ours = {name: arrays[0].shape for name, arrays in reference.values().items()}
        if saved != ours or full_gradient.unpack(
                facts, lambda kind: by_name(shares.get(kind, {}))):
            raise ValueError('it has a snapshot of other parameters: of the shapes %s, and not %s'
                             % (list(saved.values()), list(ours.values())))

    def restore():
        reference.restore(kind, numbers, values)
        snapshot.replace(full_gradient, **facts_of_snapshot)

    return restore


def _structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

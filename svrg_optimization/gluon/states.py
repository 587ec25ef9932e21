"""The file of a trainer's states: those of Trainer, and the snapshot."""

import hashlib
import pickle
import re

from mxnet import MXNetError, util
from mxnet.optimizer import Optimizer


def pickled(states, snapshot):
    """Return the content of a file, with a checksum at its end, which pickle ignores."""
    content = pickle.dumps({'trainer': states, 'svrg': snapshot})
    return content + _checksum(content)


def _checksum(content):
    return b'sha256:' + hashlib.sha256(content).hexdigest().encode()


def unpickled(saved):
    """Return the states of Trainer in a file, and those of SVRG, None if it has none."""
    content, is_signed, _ = saved.rpartition(b'sha256:')
    if is_signed and content + _checksum(content) != saved:
        raise ValueError('it does not end with its checksum')
    content, svrg = _loads(saved), None
    if isinstance(content, dict) and set(content) == {'trainer', 'svrg'}:
        saved, svrg = content['trainer'], content['svrg']
        content = _loads(saved)
    if not isinstance(content, tuple) or not isinstance(content[-1], Optimizer):
        raise ValueError('it was not saved by SVRGTrainer or Trainer')
    return pickle.dumps(content), svrg  # as this process can load them, with set_np or without


def _loads(saved):
    """Unpickle what was saved with ``npx.set_np()`` or without."""
    try:
        return pickle.loads(saved)
    except MXNetError:  # which loads arrays only as they were saved
        with util.np_array(False), util.np_shape(not util.is_np_shape()):
            return pickle.loads(saved)


def structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

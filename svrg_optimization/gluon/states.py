"""The file of a trainer's states: those of Trainer, and the snapshot."""

import hashlib
import io
import pickle
import re

from mxnet import MXNetError, util
from mxnet.optimizer import Optimizer


def with_snapshot(states, snapshot):
    """Return the content of a file: what Trainer reads, the snapshot, and a checksum of both."""
    content = states + pickle.dumps(snapshot)
    return content + _checksum(content)


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


def structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

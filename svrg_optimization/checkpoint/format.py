"""Format of checkpoints: the files of Module, and one more with the state of SVRG."""

import contextlib
import functools
import json
import os
import pickle
import zipfile

import mxnet as mx
import numpy as np

from .._argument_checks import check_epoch, checked_bool
from .._warn_once import warn
from ..core.settings import arguments_from, default_facts
from .files import (
    check_exists,
    checksum_of,
    files_written_together,
    find_file,
    read_text,
)

_FORMAT = 2
_FACTS = 'facts'
_DIGITS = 64  # of a checksum
_FACTS_OF_FORMAT = {'num_update', 'num_taken', 'step_size', 'optimizer', 'snapshot', 'symbol',
                    'checksums', *default_facts()}


def file_names(prefix, epoch, bucket_key=None):
    """Name the files of a checkpoint.

    Parameters
    ----------
    prefix : str or path
        Beginning of the names.
    epoch : int
        Number of the epoch, 0 or more.
    bucket_key : object, optional
        Key of the default bucket, for a BucketingModule.

    Returns
    -------
    dict of str to str
        Names of the files 'symbol', 'params' and 'states', as in MXNet, and of
        the file 'svrg'.

    Raises
    ------
    TypeError
        If `prefix` is not a str or a path, or `epoch` is not an int.
    ValueError
        If `epoch` is negative.
    """
    if not isinstance(prefix, (str, os.PathLike)):
        raise TypeError('prefix must be a str or a path, not %r' % (prefix,))
    check_epoch('epoch', epoch)
    prefix = os.fspath(prefix)
    names = {kind: '%s-%04d.%s' % (prefix, epoch, kind) for kind in ('params', 'states', 'svrg')}
    names['symbol'] = name_of_symbol(prefix, bucket_key)
    return names


def name_of_symbol(prefix, bucket_key=None):
    """Name the file of a symbol as in Module, or as in BucketingModule for a bucket."""
    bucket = '' if bucket_key is None else '-%s' % (bucket_key,)
    return '%s%s-symbol.json' % (os.fspath(prefix), bucket)


def with_prefix(kind, arrays):
    """Add a prefix to the names of arrays, as in the files of Module; see `arrays_of_kind`."""
    return {'%s:%s' % (kind, name): array for name, array in arrays.items()}


def arrays_of_kind(kind, arrays):
    """Return the arrays whose names have a prefix, under their names without it."""
    return {name[len(kind) + 1:]: array for name, array in arrays.items()
            if name.startswith(kind + ':')}


def write_checkpoint(names, writers, facts, arrays):
    """Write the files of a checkpoint, all whole or none.

    Parameters
    ----------
    names : dict of str to str
        Names of the files.
    writers : dict of str to callable
        For each file except 'svrg', under the same key, a callable that takes a
        name and writes the file under it.
    facts : dict
        State of SVRG for the file 'svrg', of types that JSON supports.
    arrays : dict of str to NDArray or numpy.ndarray
        Arrays for the file 'svrg'.
    """
    with files_written_together() as write_as:
        written = {kind: write_as(names[kind], write) for kind, write in writers.items()}
        checksums = {kind: checksum_of(written[kind]) if kind in written else None
                     for kind in ('params', 'states')}
        facts = {**facts, 'symbol': read_text(written['symbol']), 'checksums': checksums}
        write_as(names['svrg'], functools.partial(_write_svrg_file, facts=facts, arrays=arrays))


def _write_svrg_file(name, facts, arrays):
    """Write facts and arrays to a file: an npz archive, followed by its checksum.

    Parameters
    ----------
    name : str
        Name of the file.
    facts : dict
        Values of types that JSON supports.
    arrays : dict of str to NDArray or numpy.ndarray
        Arrays by name. The name 'facts' is reserved.
    """
    facts = json.dumps({'format': _FORMAT, **facts})
    with open(name, 'wb') as file:
        archive = zipfile.ZipFile(file, 'w')
        try:
            for key, array in {_FACTS: np.array(facts), **arrays}.items():
                array = array.asnumpy() if isinstance(array, mx.nd.NDArray) else array
                with archive.open(key + '.npy', 'w', force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            archive.close()
        except BaseException:
            archive.fp = None  # closing it would raise another error and hide a Ctrl-C
            raise
    checksum = checksum_of(name)
    with open(name, 'ab') as file:
        file.write(checksum.encode())


def _read_svrg_file(name):
    """Read the facts and arrays that `_write_svrg_file` wrote.

    Returns
    -------
    facts : dict
        State of SVRG.
    arrays : dict of str to numpy.ndarray
        Arrays by name.

    Raises
    ------
    ValueError
        If the file is truncated or was not written by `_write_svrg_file`.
    """
    content = max(0, os.path.getsize(name) - _DIGITS)
    with open(name, 'rb') as file:
        file.seek(content)
        checksum = file.read()
    if checksum != checksum_of(name, content).encode():
        raise ValueError('%s is truncated or no checkpoint of SVRG: it does not end with its '
                         'checksum' % name)
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        known, facts = facts.pop('format'), {**default_facts(), **facts}
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, TypeError, AttributeError) as error:
        raise ValueError('%s is truncated or no checkpoint of SVRG: %s' % (name, error)) from error
    newer = set(facts) - _FACTS_OF_FORMAT
    if known != _FORMAT or newer:
        raise ValueError('%s was saved by a newer version: it has format %r%s, and this one reads '
                         'format %d' % (name, known, ''.join(
                             ' with ' + fact for fact in sorted(newer)), _FORMAT))
    if set(facts) != _FACTS_OF_FORMAT:
        raise ValueError('%s is no checkpoint of SVRG: it has the facts %s' % (
            name, ', '.join(sorted(facts))))
    return facts, arrays


class Checkpoint:
    """Checkpoint that was read and found whole.

    Parameters
    ----------
    prefix : str or path
        Beginning of the file names.
    epoch : int
        Number of the epoch in the file names.
    with_states : bool
        Whether the optimizer's states are wanted.
    bucket_key : object, optional
        Key of the default bucket, for a BucketingModule.

    Attributes
    ----------
    symbol : Symbol
        Network; for a BucketingModule the network of the default bucket.
    arg_params, aux_params : dict of str to NDArray
        Parameters and auxiliary states.
    with_states : bool
        Whether the optimizer's states are wanted.
    states : str or None
        Name of the file of the optimizer's states, None if they are not wanted
        or were not saved.
    facts : dict or None
        State of SVRG; None in a checkpoint of plain Module.
    arrays : dict of str to numpy.ndarray
        Arrays of the snapshot and the full gradient.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is truncated, is not part of a checkpoint, or belongs to
        another checkpoint than the others. The message names the files.
    """

    def __init__(self, prefix, epoch, with_states, bucket_key=None):
        names = file_names(prefix, epoch, bucket_key)
        if not isinstance(with_states, int):  # Module accepts an int as a bool
            with_states = checked_bool('load_optimizer_states', with_states)
        self.with_states = with_states
        self.facts, self.arrays = None, {}
        if os.path.exists(names['svrg']):
            self.facts, self.arrays = _read_svrg_file(names['svrg'])
            checksums = self.facts.pop('checksums')
            were_on_servers = (self.facts['optimizer'] or {}).get('on_servers')
            if with_states and checksums['states'] is None and were_on_servers:
                warn('%s was saved without the states of the optimizer, which were on servers: '
                     'they begin anew' % names['svrg'])
                with_states = False
        kinds = ['params', 'states'] if with_states else ['params']
        if self.facts:
            names.update((kind, find_file(names[kind], checksums[kind], names['svrg']))
                         for kind in kinds)
        for kind in kinds:
            check_exists(names[kind])
        saved = _read(mx.nd.load, names['params'])
        saved = saved or {}  # for a network without parameters MXNet returns an empty list
        if not isinstance(saved, dict) or any(key[:4] not in ('arg:', 'aux:') for key in saved):
            raise ValueError('%s is no file of parameters' % names['params'])
        self.arg_params = arrays_of_kind('arg', saved)
        self.aux_params = arrays_of_kind('aux', saved)
        if with_states and self.facts is None:
            _check_states(names['states'])
        if self.facts:
            # All epochs share the file of the symbol, which may be another network's by now.
            self.symbol = mx.sym.load_json(self.facts.pop('symbol'))
        else:
            self.symbol = _read_symbol(names['symbol'])
        self.states = names['states'] if with_states else None

    def constructor_arguments(self, update_freq, given):
        """Return constructor arguments: those that are given, and for the others the saved ones.

        Parameters
        ----------
        update_freq : int or None
            By default the value of the saved module; 1 for a plain Module.
        given : dict
            Further arguments of the constructor.

        Returns
        -------
        dict
            Arguments by name.
        """
        if update_freq is not None:
            given = {**given, 'update_freq': update_freq}
        facts = self.facts or {**default_facts(), 'update_freq': 1}
        return arguments_from(facts, given)


def _read_symbol(name):
    check_exists(name)

    def read(name):
        text = read_text(name)
        json.loads(text, strict=False)  # MXNet reads on past the end of truncated text
        return mx.sym.load_json(text)

    return _read(read, name)


@contextlib.contextmanager
def errors_of_states(name):
    """Turn the errors of unpickling a file into a ValueError that names it."""
    try:
        yield
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError,
            ValueError) as error:
        raise ValueError('%s is truncated or no file of optimizer states' % name) from error


def _check_states(name):
    with errors_of_states(name), open(name, 'rb') as file:
        pickle.load(file)


def _read(read, name):
    try:
        return read(name)
    except (mx.MXNetError, ValueError) as error:  # MXNet raises some errors as ValueErrors
        raise ValueError('%s is truncated or no file of MXNet' % name) from error

"""Checkpoints: the files of Module, and one beside them with what SVRG needs to go on."""

import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import pickle
import tempfile
import time
import warnings
import zipfile

import mxnet as mx
import numpy as np

from .argument_checks import check_epoch, checked_bool

try:
    import fcntl
except ImportError:  # of systems without it, on which nothing is locked
    fcntl = None

_FORMAT = 2
_FACTS = 'facts'
_DIGITS = 64  # of a checksum
_FACTS_OF_FORMAT = {'update_freq', 'alpha', 'num_update', 'step_size', 'optimizer', 'snapshot',
                    'symbol', 'checksums'}
_LONG_NAME = 200  # bytes: file systems allow 255 or less
_SECONDS = 1  # that others are waited for: giving names takes milliseconds


def file_names(prefix, epoch, bucket_key=None):
    """Name the files of a checkpoint.

    Parameters
    ----------
    prefix : str
    epoch : int
    bucket_key : object, optional
        That of the default bucket, for a BucketingModule.

    Returns
    -------
    dict of str to str
        Under 'symbol', 'params' and 'states' the names that MXNet uses, under
        'svrg' that of the file beside them.

    Raises
    ------
    TypeError, ValueError
        If `prefix` is neither a str nor a path, or `epoch` no int of 0 or more.
    """
    if not isinstance(prefix, (str, os.PathLike)):
        raise TypeError('prefix must be a str or a path, not %r' % (prefix,))
    check_epoch('epoch', epoch)
    prefix = os.fspath(prefix)
    names = {kind: '%s-%04d.%s' % (prefix, epoch, kind) for kind in ('params', 'states', 'svrg')}
    names['symbol'] = name_of_symbol(prefix, bucket_key)
    return names


def name_of_symbol(prefix, bucket_key=None):
    """Name the file of a symbol, as Module does or, for a bucket, BucketingModule."""
    bucket = '' if bucket_key is None else '-%s' % (bucket_key,)
    return '%s%s-symbol.json' % (os.fspath(prefix), bucket)


def prefixed(kind, arrays):
    """Give the names of arrays a prefix, as Module does in its files; see `of_kind`."""
    return {'%s:%s' % (kind, name): array for name, array in arrays.items()}


def of_kind(kind, arrays):
    """Pick the arrays of one prefix, and take it off their names."""
    return {name[len(kind) + 1:]: array for name, array in arrays.items()
            if name.startswith(kind + ':')}


def write_checkpoint(names, writers, facts, arrays):
    """Write the files of a checkpoint, all whole or none.

    Parameters
    ----------
    names : dict of str to str
        Names of the files.
    writers : dict of str to callable
        For each file but 'svrg', under the same keys, a callable that takes
        the name to write it under.
    facts : dict
        For the file 'svrg'; anything that JSON can hold.
    arrays : dict of str to NDArray or numpy.ndarray
        For the file 'svrg'.
    """
    with _files_written_together() as write_as:
        written = {kind: write_as(names[kind], write) for kind, write in writers.items()}
        checksums = {kind: _checksum(written[kind]) if kind in written else None
                     for kind in ('params', 'states')}
        facts = {**facts, 'symbol': _read_text(written['symbol']), 'checksums': checksums}
        write_as(names['svrg'], functools.partial(_write_svrg_file, facts=facts, arrays=arrays))


@contextlib.contextmanager
def _files_written_together():
    """Write several files under other names, and give them theirs when all are whole.

    The last one is the first to get its name: of a process that is stopped
    meanwhile, a file is left that knows the others, which `_find` finds, and
    not others that pass for a checkpoint of plain Module. All are in one
    directory, but for the targets of symbolic links, which are written through
    as Module does.

    Yields
    ------
    callable
        Takes the name of a file and what writes it, and returns the name that
        it is written under. The files are not touched if the block fails.
    """
    temporary_names = {}

    def write_as(name, write):
        with _errors_that_name(name):
            if os.path.isdir(name):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            directory, begin = os.path.split(_begin_of_temporary_names(name))
            handle, temporary = tempfile.mkstemp(dir=directory, prefix=begin)
            os.close(handle)
            temporary_names[name] = temporary
            write(temporary)
            with open(temporary, 'rb+') as file:
                os.fsync(file.fileno())
        return temporary

    try:
        yield write_as
        umask = os.umask(0)
        os.umask(umask)
        for temporary in temporary_names.values():
            os.chmod(temporary, 0o666 & ~umask)
        with _locked_directory_of(next(iter(temporary_names)), exclusive=True) as flush:
            for name, temporary in reversed(list(temporary_names.items())):
                os.replace(temporary, os.path.realpath(name))
            flush()
    finally:
        if temporary_names and os.path.exists(list(temporary_names.values())[-1]):
            for temporary in temporary_names.values():
                with contextlib.suppress(FileNotFoundError):
                    os.remove(temporary)


def _begin_of_temporary_names(name):
    """Return what the temporary names of a file begin with.

    A file's name may be as long as the file system allows.
    """
    directory, base = os.path.split(os.path.realpath(name))
    while len(os.fsencode(base)) > _LONG_NAME:
        base = base[:-1]
    return os.path.join(directory, base + '.')


@contextlib.contextmanager
def _errors_that_name(name):
    """Make errors of writing a file name it, and not the temporary one or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), name) from error
    except mx.MXNetError as error:
        if 'FileStream.Write' not in str(error):
            raise
        raise _not_written_whole(name) from error


def save_symbol(symbol, remove_amp_cast, name):
    """Write the file of ``Symbol.save``, which does not tell that the disk is full."""
    with open(name, 'wb') as file:
        file.write(symbol.tojson(remove_amp_cast=remove_amp_cast).encode())


def save_arrays(save, name):
    """Write a file of arrays, and read it back: ``nd.save`` may lose its end on a full disk."""
    save(name)
    try:
        mx.nd.load(name)
    except mx.MXNetError as error:
        raise _not_written_whole(name) from error


def _not_written_whole(name):
    return OSError(errno.EIO, 'MXNet could not write it whole, as on a full disk', name)


@contextlib.contextmanager
def _locked_directory_of(name, exclusive):
    """Hold off savers, and loaders too if `exclusive`, where the file system can, and for a while.

    Yields
    ------
    callable
        Flushes the directory to the disk.
    """
    try:
        handle = os.open(os.path.dirname(name) or '.', os.O_RDONLY)
    except OSError:  # it may be written to and not read, or is none to open
        yield lambda: None
        return

    def flush():
        with contextlib.suppress(OSError):
            os.fsync(handle)

    try:
        if fcntl:
            _lock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield flush
    finally:
        if fcntl:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has it too
        os.close(handle)


def _lock(handle, kind):
    """Lock a directory, unless the file system cannot or somebody has it locked for long."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return
        else:
            return


def _checksum(name, length=None):
    """Return the SHA-256 of a file or of its first bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    left = os.path.getsize(name) if length is None else length
    with open(name, 'rb') as file:
        while left:
            block = file.read(min(left, 1 << 20))
            if not block:
                break
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _read_text(name):
    with open(name, encoding='utf-8') as file:
        return file.read()


def _write_svrg_file(name, facts, arrays):
    """Write facts and arrays to a file, an npz archive and the checksum of all its bytes.

    Parameters
    ----------
    name : str
    facts : dict
        Anything that JSON can hold.
    arrays : dict of str to NDArray or numpy.ndarray
        Their names must not be 'facts'.
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
            archive.fp = None  # to close it would hide a Ctrl-C behind an error of its own
            raise
    checksum = _checksum(name)
    with open(name, 'ab') as file:
        file.write(checksum.encode())


def _read_svrg_file(name):
    """Read the facts and arrays that `_write_svrg_file` wrote.

    Returns
    -------
    facts : dict
    arrays : dict of str to numpy.ndarray

    Raises
    ------
    ValueError
        If the file is truncated or was not written by `_write_svrg_file`.
    """
    content = max(0, os.path.getsize(name) - _DIGITS)
    with open(name, 'rb') as file:
        file.seek(content)
        checksum = file.read()
    if checksum != _checksum(name, content).encode():
        raise ValueError('%s is truncated or no checkpoint of SVRG: it does not end with its '
                         'checksum' % name)
    try:
        with np.load(name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        known = facts.pop('format')
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, TypeError, AttributeError) as error:
        raise ValueError('%s is truncated or no checkpoint of SVRG: %s' % (name, error)) from error
    if known != _FORMAT:
        raise ValueError('%s has format %r, and this version reads format %d' % (
            name, known, _FORMAT))
    if set(facts) != _FACTS_OF_FORMAT:
        raise ValueError('%s is no checkpoint of SVRG: it has the facts %s' % (
            name, ', '.join(sorted(facts))))
    return facts, arrays


class Checkpoint:
    """A checkpoint that was read and found whole.

    Parameters
    ----------
    prefix : str
    epoch : int
    with_states : bool
        Whether the optimizer's states are wanted.
    bucket_key : object, optional
        That of the default bucket, for a BucketingModule.

    Attributes
    ----------
    symbol : Symbol
        That of the default bucket, for a BucketingModule.
    arg_params, aux_params : dict of str to NDArray
    with_states : bool
        Whether the optimizer's states are wanted.
    states : str or None
        Name of the file of these, where they are wanted and could be saved.
    check_states : callable
        Checks that this file is still that of the checkpoint: it is read when
        the optimizer is installed, and another process may have saved by then.
    facts : dict or None
        What SVRG needs to go on; None in a checkpoint of plain Module.
    arrays : dict of str to numpy.ndarray

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is truncated, foreign, or not of the same checkpoint as the
        others. It names the file or files.
    """

    def __init__(self, prefix, epoch, with_states, bucket_key=None):
        names = file_names(prefix, epoch, bucket_key)
        if not isinstance(with_states, int):  # which Module takes for a bool
            with_states = checked_bool('load_optimizer_states', with_states)
        with _locked_directory_of(names['svrg'], exclusive=False), \
                _staying_as_they_are(names['svrg'], names['params']):
            self._read(names, with_states)

    def _read(self, names, with_states):
        self.with_states = with_states
        self.facts, self.arrays = None, {}
        if os.path.exists(names['svrg']):
            self.facts, self.arrays = _read_svrg_file(names['svrg'])
            checksums = self.facts.pop('checksums')
            if with_states and checksums['states'] is None and self._states_were_on_servers:
                warnings.warn('%s was saved without the states of the optimizer, which were on '
                              'servers: they begin anew' % names['svrg'], stacklevel=4)
                with_states = False
        kinds = ['params', 'states'] if with_states else ['params']
        if self.facts:
            names.update((kind, _find(names[kind], checksums[kind], names['svrg']))
                         for kind in kinds)
        for kind in kinds:
            _check_exists(names[kind])
        saved = _read(mx.nd.load, names['params'])
        saved = saved or {}  # of a network without parameters MXNet reads an empty list
        if not isinstance(saved, dict) or any(key[:4] not in ('arg:', 'aux:') for key in saved):
            raise ValueError('%s is no file of parameters' % names['params'])
        self.arg_params, self.aux_params = of_kind('arg', saved), of_kind('aux', saved)
        if with_states and self.facts is None:
            _check_states(names['states'])
        if self.facts:
            self.symbol = self._network_saved(names)
        else:
            self.symbol, _ = _read_symbol(names['symbol'])
        self.states = names['states'] if with_states else None
        self.check_states = lambda: None
        if with_states and self.facts:
            self.check_states = functools.partial(_check, names['states'], checksums['states'],
                                                  names['svrg'])

    def _network_saved(self, names):
        """Take the copy of the network, since all epochs share one file of it.

        That may be of another network by now, and is the last to get its name.
        """
        text, name = self.facts.pop('symbol'), names['symbol']
        if not os.path.exists(name) or _network(_read_symbol(name)[1]) != _network(text):
            warnings.warn('%s is not the network that %s was saved with, which has a copy: that is '
                          'taken' % (name, names['svrg']), stacklevel=5)
        return mx.sym.load_json(text)

    @property
    def _states_were_on_servers(self):
        return bool((self.facts['optimizer'] or {}).get('on_servers'))

    def arguments_to_go_on(self, update_freq, given):
        """Return arguments of a module's constructor: those of the saved one, where none are given.

        Parameters
        ----------
        update_freq : int or None
            None for that of the saved module, which is 1 for a plain Module.
        given : dict
            Further arguments.
        """
        saved = self.facts or {'update_freq': 1, 'alpha': 1.}
        if saved['alpha'] is None and 'alpha' not in given:
            warnings.warn('the checkpoint was saved with a schedule of alpha, which it cannot '
                          'hold: give one with alpha=, or it is 1', stacklevel=3)
        alpha = 1. if saved['alpha'] is None else saved['alpha']
        return {'alpha': alpha, **given,
                'update_freq': saved['update_freq'] if update_freq is None else update_freq}


def _find(name, known, svrg_name):
    """Return the name of a checkpoint's file.

    That of a saver which was stopped before it could give the name is another
    than the file's own; see `_files_written_together`.
    """
    try:
        _check(name, known, svrg_name)
    except (FileNotFoundError, ValueError):
        for left in glob.glob(glob.escape(_begin_of_temporary_names(name)) + '*'):
            with contextlib.suppress(OSError):
                if _checksum(left) == known:
                    warnings.warn('%s was left by a process that was stopped while it saved, and '
                                  'is taken for %s: save that epoch again' % (left, name),
                                  stacklevel=6)
                    return left
        raise
    return name


def _check(name, known, svrg_name):
    if known is None:
        raise ValueError('%s says that the checkpoint was saved without %s' % (svrg_name, name))
    if not os.path.exists(name):
        raise FileNotFoundError('%s belongs to %s, and is missing' % (name, svrg_name))
    if _checksum(name) != known:
        raise ValueError('%s is not the file that %s was saved with: the one or the other is '
                         'truncated or of another training' % (name, svrg_name))


@contextlib.contextmanager
def _staying_as_they_are(*names):
    """Raise a ValueError if a file that is read by its name is replaced or written meanwhile."""
    def states():
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name)
                found[name] = status.st_ino, status.st_size, status.st_mtime_ns
        return found

    before = states()
    yield
    after = states()
    for name in names:
        if after.get(name) != before.get(name):
            raise ValueError('%s was saved anew while it was loaded' % name)


def _network(text):
    """Return what makes two symbols the same network, for one who has the names of its parameters.

    That is all but the version of MXNet and the names of operators, which
    MXNet numbers where a script names none.
    """
    graph = json.loads(text, strict=False)
    nodes = [node if node.get('op') == 'null' else {**node, 'name': None}
             for node in graph.get('nodes', [])]
    return nodes, graph.get('heads')


def _read_symbol(name):
    """Read a symbol; return it and its JSON."""
    _check_exists(name)

    def read(name):
        text = _read_text(name)
        json.loads(text, strict=False)  # MXNet reads on without an end
        return mx.sym.load_json(text), text

    return _read(read, name)


@contextlib.contextmanager
def errors_of_states(name):
    """Make a ValueError that names a file of what goes wrong where it is no pickle."""
    try:
        yield
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError,
            ValueError) as error:
        raise ValueError('%s is truncated or no file of optimizer states' % name) from error


def _check_states(name):
    with errors_of_states(name), open(name, 'rb') as file:
        pickle.load(file)


def _check_exists(name):
    if not os.path.exists(name):
        raise FileNotFoundError('the checkpoint has no file %s' % name)


def _read(read, name):
    try:
        return read(name)
    except (mx.MXNetError, ValueError) as error:  # the latter of MXNet's own message, too
        raise ValueError('%s is truncated or no file of MXNet' % name) from error

"""Writing files whole or not at all, and checking their checksums."""

import contextlib
import errno
import glob
import hashlib
import os
import tempfile

import mxnet as mx

from .._warn_once import warn

_LONG_NAME = 200  # bytes: file systems allow 255 or less


@contextlib.contextmanager
def files_written_together():
    """Write several files under temporary names and rename them when all are whole.

    The last file is renamed first. It contains the checksums of the others, so
    `find_file` can find them under their temporary names if the process is
    killed while renaming. In the other order the files renamed so far would
    look like a checkpoint of plain Module. All files are in one directory. A
    symbolic link is followed, as in Module, and its target is written.

    Yields
    ------
    callable
        Takes the name of a file and a function that writes it, and returns the
        temporary name. If the block fails, the files stay as they were.
    """
    temporary_names = {}

    def write_as(name, write):
        with errors_that_name(name):
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
        for name, temporary in reversed(list(temporary_names.items())):
            os.replace(temporary, os.path.realpath(name))
    finally:
        if temporary_names and os.path.exists(list(temporary_names.values())[-1]):
            for temporary in temporary_names.values():
                with contextlib.suppress(FileNotFoundError):
                    os.remove(temporary)


def _begin_of_temporary_names(name):
    """Return the beginning of a file's temporary names.

    It is cut, because the file's name may be as long as the file system allows.
    """
    directory, base = os.path.split(os.path.realpath(name))
    while len(os.fsencode(base)) > _LONG_NAME:
        base = base[:-1]
    return os.path.join(directory, base + '.')


@contextlib.contextmanager
def errors_that_name(name):
    """Put the name of the file into errors of writing it, in place of its temporary name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), name) from error
    except mx.MXNetError as error:
        if 'FileStream.Write' not in str(error):
            raise
        raise _not_written_whole(name) from error


def checksum_of(name, length=None):
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


def read_text(name):
    """Return the text of a file in UTF-8."""
    with open(name, encoding='utf-8') as file:
        return file.read()


def _not_written_whole(name):
    return OSError(errno.EIO, 'MXNet could not write it whole, as on a full disk', name)


def save_symbol(symbol, remove_amp_cast, name):
    """Write the file of ``Symbol.save``, which itself reports no full disk."""
    with open(name, 'wb') as file:
        file.write(symbol.tojson(remove_amp_cast=remove_amp_cast).encode())


def save_arrays(save, name):
    """Write a file of arrays and read it back: ``nd.save`` may lose its end on a full disk."""
    save(name)
    try:
        mx.nd.load(name)
    except mx.MXNetError as error:
        raise _not_written_whole(name) from error


def find_file(name, known, svrg_name):
    """Return the name under which a file of a checkpoint can be read.

    It is a temporary name if the process that saved it was killed before it
    renamed the file; see `files_written_together`.

    Parameters
    ----------
    name : str
        Name of the file.
    known : str or None
        Checksum of the file, None if the checkpoint was saved without it.
    svrg_name : str
        Name of the ``.svrg`` file, for messages.

    Returns
    -------
    str
        The name, or a temporary one.

    Raises
    ------
    FileNotFoundError
        If the file is missing.
    ValueError
        If the file has another checksum, or the checkpoint was saved without it.
    """
    if known is None:
        raise ValueError('%s says that the checkpoint was saved without %s' % (svrg_name, name))
    is_there = os.path.exists(name)
    if is_there and checksum_of(name) == known:
        return name
    for left in glob.glob(glob.escape(_begin_of_temporary_names(name)) + '*'):
        with contextlib.suppress(OSError):
            if checksum_of(left) == known:
                warn('%s was left by a process that was stopped while it saved, and is taken for '
                     '%s: save that epoch again' % (left, name))
                return left
    if not is_there:
        raise FileNotFoundError('%s belongs to %s, and is missing' % (name, svrg_name))
    raise ValueError('%s is not the file that %s was saved with: the one or the other is '
                     'truncated or of another training' % (name, svrg_name))


def check_exists(name):
    """Raise a FileNotFoundError if a checkpoint has no such file."""
    if not os.path.exists(name):
        raise FileNotFoundError('the checkpoint has no file %s' % name)

"""Files of numbers, strings and arrays, without pickles, written whole or not at all.

Such a file is an uncompressed npz archive. Its array 'content' is JSON, in which numbers name the
other arrays. The checksums of the zip format reveal damage, but no forgery.
"""

import contextlib
import errno
import io
import json
import os
import shutil
import tempfile
import uuid
import zipfile

import mxnet as mx
import numpy as np

_FORMAT = 1
_CONTENT = 'content'
_ARRAY, _ROW_SPARSE, _TUPLE = '__array__', '__row_sparse__', '__tuple__'  # what JSON lacks
_KINDS = {'numpy': np.ndarray, 'np': mx.np.ndarray, 'nd': mx.nd.NDArray}


def write(name, saved_by, content):
    """Write a dict of None, numbers, strings, arrays, and lists and dicts of them, to a file.

    `read` returns NDArrays as NDArrays and NumPy's arrays as NumPy's. Tuples become lists, unless
    `with_tuples` was applied. Keys of dicts must be strings.
    """
    arrays = {}

    def named(value):
        if isinstance(value, mx.nd.sparse.RowSparseNDArray):
            return {_ROW_SPARSE: [value.data, value.indices, value.shape]}
        for kind, klass in _KINDS.items():
            if isinstance(value, klass):
                arrays[str(len(arrays))] = value
                return {_ARRAY: str(len(arrays) - 1), 'of': kind}
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError('what a file without pickles has must be None, numbers, strings, arrays, '
                        'or lists and dicts of them, not %r' % (value,))

    text = json.dumps({'format': _FORMAT, 'saved_by': saved_by, _CONTENT: content}, default=named)
    arrays[_CONTENT] = np.array(text)
    with zipfile.ZipFile(name, 'w') as archive:
        for key, array in arrays.items():
            array = array.asnumpy() if isinstance(array, mx.nd.NDArray) else array
            with archive.open(key + '.npy', 'w', force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def with_tuples(value):
    """Return a value for `write` whose tuples, as those of an optimizer's states, stay tuples."""
    if isinstance(value, (list, tuple)):
        parts = list(map(with_tuples, value))
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    return value


class _Content(dict):
    """A dict of a file. A key that it lacks is an error that names the file."""

    def __init__(self, values=(), name=''):
        super().__init__(values)
        self._name = name

    def __missing__(self, key):
        raise ValueError('%s is damaged: it has no %r' % (self._name, key))


def read(name, saved_by):
    """Return the content of a file that `write` wrote for the same class.

    It raises a ValueError if the file is damaged, or of another class or format.
    """
    arrays = {}

    def found(value):
        if _ARRAY in value:
            array, kind = arrays[value[_ARRAY]], value['of']
            return array if kind == 'numpy' else getattr(mx, kind).array(
                array, dtype=array.dtype, ctx=mx.cpu())
        if _ROW_SPARSE in value:
            rows, indices, shape = value[_ROW_SPARSE]
            return mx.nd.sparse.row_sparse_array((rows, indices), tuple(shape), dtype=rows.dtype)
        return tuple(value[_TUPLE]) if _TUPLE in value else _Content(value, name)

    with open(name, 'rb') as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.namelist():  # each is read whole, for its checksum
                    arrays[member[:-len('.npy')]] = np.lib.format.read_array(
                        io.BytesIO(archive.read(member)), allow_pickle=False)
            whole = json.loads(str(arrays[_CONTENT]), object_hook=found)
            wrote, content = (whole['saved_by'], whole['format']), whole[_CONTENT]
        except Exception as error:  # a damaged archive may raise any
            raise ValueError('%s is damaged, or no file of %s: %s'
                             % (name, saved_by, error or type(error).__name__)) from error
    if wrote != (saved_by, _FORMAT):
        raise ValueError('%s must be saved by %s in format %d, and was by %s in format %r'
                         % (name, saved_by, _FORMAT, *wrote))
    return content


def write_together(writers):
    """Write several files, all as a whole or none, each by a function that takes a file name.

    Each is first written under another name in its folder. When all are complete, they get their
    names, in the order of the dict. A symbolic link is followed, as in Module. A device or a pipe
    of that name gets the content.
    """
    temporary_names = {}
    try:
        for name, write_as in writers.items():
            target = os.path.realpath(name)
            folder = os.path.dirname(target)
            if _is_special(name):
                target, folder = name, tempfile.gettempdir()
            temporary = os.path.join(folder, 'svrg-%s.tmp' % uuid.uuid4().hex)
            try:
                if os.path.isdir(target):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                open(temporary, 'xb').close()
                temporary_names[target] = temporary
                if os.path.isfile(target):
                    _own_like(temporary, os.stat(target))
                    shutil.copymode(target, temporary)
                write_as(temporary)
                with open(temporary, 'rb+') as file:
                    os.fsync(file.fileno())
            except OSError as error:  # it names the temporary file
                raise OSError(error.errno or errno.EIO, error.strerror or str(error),
                              name) from error
        for target, temporary in temporary_names.items():
            if _is_special(target):
                with open(temporary, 'rb') as file, open(target, 'wb') as special:
                    shutil.copyfileobj(file, special)
            else:
                os.replace(temporary, target)
    finally:
        for temporary in temporary_names.values():
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
    for folder in {os.path.dirname(target) for target in temporary_names}:
        with contextlib.suppress(OSError):  # some file systems cannot
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _is_special(name):
    """Tell whether a device, a pipe or a socket has this name."""
    return os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)


def _own_like(name, other):
    """Give a file the owner and the group of another one, as far as the user may."""
    for owner, group in ((other.st_uid, -1), (-1, other.st_gid)):
        with contextlib.suppress(PermissionError):
            os.chown(name, owner, group)


def save_text(text, name):
    """Write a text, since ``Symbol.save`` does not report a full disk."""
    with open(name, 'w', encoding='utf-8') as file:
        file.write(text)


def save_arrays(save, name):
    """Write a file of arrays and read it back, as ``nd.save`` may lose its end on a full disk."""
    try:
        save(name)
        mx.nd.load(name)
    except mx.MXNetError as error:
        raise OSError(errno.EIO, 'MXNet could not write it whole, as on a full disk') from error

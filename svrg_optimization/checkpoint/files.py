"""Files of numbers, strings and arrays, without pickles, written whole or not at all.

Such a file is an uncompressed npz archive. Its array 'state' is JSON, in which numbers name the
other arrays. The checksums of the zip format reveal damage, but no forgery.
"""

import contextlib
import errno
import io
import json
import os
import shutil
import uuid
import zipfile

import mxnet as mx
import numpy as np

_FORMAT = 1
_STATE = 'state'
_ARRAY, _ROW_SPARSE, _TUPLE = '__array__', '__row_sparse__', '__tuple__'  # what JSON lacks
_KINDS = {'numpy': np.ndarray, 'np': mx.np.ndarray, 'nd': mx.nd.NDArray}


def write(name, saved_by, state):
    """Write None, numbers, strings, arrays, and lists, tuples and dicts of them, to a file.

    `read` returns NDArrays as NDArrays and NumPy's arrays as NumPy's. Keys of dicts become strings.
    """
    arrays = {}

    def encoded(value):
        if isinstance(value, mx.nd.sparse.RowSparseNDArray):
            return {_ROW_SPARSE: [value.data, value.indices, value.shape]}
        for kind, klass in _KINDS.items():
            if isinstance(value, klass):
                arrays[str(len(arrays))] = value
                return {_ARRAY: str(len(arrays) - 1), 'of': kind}
        return np.generic.item(value)  # or a TypeError

    text = json.dumps({'format': _FORMAT, 'saved_by': saved_by, _STATE: _with_tuples(state)},
                      default=encoded)
    arrays[_STATE] = np.array(text)
    with _whole(name) as file, zipfile.ZipFile(file, 'w') as archive:
        for key, array in arrays.items():
            array = array.asnumpy() if isinstance(array, mx.nd.NDArray) else array
            with archive.open(key + '.npy', 'w', force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _with_tuples(value):
    """Return a value whose tuples, as those of an optimizer's states, JSON does not make lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = list(map(_with_tuples, value))
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    return value


@contextlib.contextmanager
def _whole(name):
    """Yield a file that gets its name when the block has written it, and vanishes if that fails.

    A symbolic link is followed.
    """
    target = os.path.realpath(name)
    if os.path.exists(target) and not os.path.isfile(target):  # root would replace a device
        raise FileExistsError(errno.EEXIST, 'it is no file that can be replaced', name)
    temporary = os.path.join(os.path.dirname(target), 'svrg-%s.tmp' % uuid.uuid4().hex)
    try:
        with open(temporary, 'xb') as file:
            if os.path.exists(target):
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), name) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


class _State(dict):
    """A dict of a file. A key that it lacks is an error that names the file."""

    def __init__(self, values, name):
        super().__init__(values)
        self.file_name = name

    def __missing__(self, key):
        raise ValueError('%s is damaged: it has no %r' % (self.file_name, key))


def read(name, saved_by):
    """Return the state that `write` wrote to a file for the same class.

    It raises a ValueError if the file is damaged, or of another class or format.
    """
    arrays = {}

    def decoded(value):
        if _ARRAY in value:
            array, kind = arrays[value[_ARRAY]], value['of']
            return array if kind == 'numpy' else getattr(mx, kind).array(
                array, dtype=array.dtype, ctx=mx.cpu())
        if _ROW_SPARSE in value:
            rows, indices, shape = value[_ROW_SPARSE]
            return mx.nd.sparse.row_sparse_array((rows, indices), tuple(shape), dtype=rows.dtype)
        return tuple(value[_TUPLE]) if _TUPLE in value else _State(value, name)

    with open(name, 'rb') as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.namelist():  # each is read whole, for its checksum
                    arrays[member[:-len('.npy')]] = np.lib.format.read_array(
                        io.BytesIO(archive.read(member)), allow_pickle=False)
            whole = json.loads(str(arrays[_STATE]), object_hook=decoded)
            wrote, state = (whole['saved_by'], whole['format']), whole[_STATE]
        except Exception as error:  # a damaged archive may raise any
            raise ValueError('%s is damaged, or no file of %s: %s'
                             % (name, saved_by, error or type(error).__name__)) from error
    if wrote != (saved_by, _FORMAT):
        raise ValueError('%s must be saved by %s in format %d, and was by %s in format %r'
                         % (name, saved_by, _FORMAT, *wrote))
    return state

"""Checkpoints on full and forbidden disks, by processes that are killed or race, and damaged."""

import contextlib
import fcntl
import itertools
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from checkpoints import bound, load, train
from problems import Problem
from processes import in_a_process
from sequences import LENGTHS, Sequences
from svrg_optimization import SVRGBucketingModule
from svrg_optimization.checkpoint.format import Checkpoint, file_names

KINDS = ('params', 'states', 'svrg')


def trained(epochs=1):
    """Return a module whose checkpoint has files of more than a page."""
    problem = Problem('softmax', rows=37, features=900)
    return train(problem, problem.module(2), 0, epochs)


def trained_buckets():
    problem = Sequences()
    module = problem.module(2)
    module.fit(problem.iterator(), eval_metric=[], num_epoch=1, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.1, 'momentum': 0.9})
    return module


def content(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}


def fingerprint(prefix, epoch):
    """Load a checkpoint; return a hash of all of it."""
    found = Checkpoint(prefix, epoch, with_states=True)
    arrays = [(name, array.asnumpy().tobytes()) for name, array in sorted(found.arg_params.items())]
    arrays += [(name, array.tobytes()) for name, array in sorted(found.arrays.items())]
    return hash((tuple(arrays), str(found.facts), Path(found.states).read_bytes(),
                 found.symbol.tojson()))


def fork(function, *arguments):
    """Run a function in a copy of this process; return its id."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        function(*arguments)
        os._exit(0)
    os._exit(1)


# A full disk

def save_with_small_files(module, prefix):
    """Save with limits for the size of files, which fail in each of them and at each part of it."""
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    before = content(os.path.dirname(prefix))
    sizes = sorted(len(file) for file in before.values())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in sorted({0, 1, 100, 4096, *(part for size in sizes for part in (
            size // 2, size - 20, size - 1))}):
        if limit >= sizes[-1]:
            break
        for epoch in (1, 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                module.save_checkpoint(prefix, epoch, save_optimizer_states=True)
            except OSError as error:
                found = error
            else:
                raise AssertionError('saved in files of %d bytes' % limit)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            assert found.filename.startswith(prefix), found
            assert re.search(r'(-000%d\.(params|states|svrg)|json|\.buckets)$' % epoch,
                             found.filename), found
            assert re.search('File too large|could not write it whole', str(found)), found
            assert content(os.path.dirname(prefix)) == before, limit


def full_disk(prefix):
    save_with_small_files(trained(), prefix)
    fingerprint(prefix, 1)


def full_disk_with_buckets(prefix):
    save_with_small_files(trained_buckets(), prefix)
    SVRGBucketingModule.load(prefix, 1, Sequences().sym_gen, max(LENGTHS), True)


@pytest.mark.parametrize('function', [full_disk, full_disk_with_buckets])
def test_files_that_cannot_grow(tmp_path, function):
    output = in_a_process(function, tmp_path / 'model')
    assert 'Exception ignored' not in output


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 40 pages."""
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=160k', 'tmpfs', str(tmp_path)],
                             check=False, stderr=subprocess.DEVNULL)
    if mounted.returncode:
        pytest.skip('may not mount a disk')
    yield tmp_path
    subprocess.run(['umount', str(tmp_path)], check=True)


@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid() != 0, reason='only root may mount')
def test_full_disk(small_disk):
    """Saving fails and changes nothing, or gives a whole checkpoint."""
    module, prefix = trained(), str(small_disk / 'model')
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    failures = 0
    for free in range(40):
        with open(small_disk / 'filler', 'wb', buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            filler.truncate(os.fstat(filler.fileno()).st_size - 4096 * free)
        before = content(small_disk)
        try:
            module.save_checkpoint(prefix, 2, save_optimizer_states=True)
        except OSError as error:
            assert re.search(r'model-(0002\.(params|states|svrg)|symbol\.json)$', error.filename)
            assert content(small_disk) == before
            failures += 1
        else:
            break
    assert failures >= 5
    assert fingerprint(prefix, 1) == fingerprint(prefix, 2)


def test_files_are_flushed_before_they_get_their_names(monkeypatch, tmp_path):
    events = []

    def recorded(function, of):
        def call(first, *others):
            function(first, *others)
            events.append((function.__name__, of(first, *others).st_ino))
        return call

    monkeypatch.setattr(os, 'fsync', recorded(os.fsync, os.fstat))
    monkeypatch.setattr(os, 'replace', recorded(os.replace, lambda _, name: os.stat(name)))
    trained().save_checkpoint(str(tmp_path / 'model'), 1, save_optimizer_states=True)
    names = ['fsync'] * 4 + ['replace'] * 4 + ['fsync']
    assert [name for name, _ in events] == names
    assert {file for _, file in events[:4]} == {file for _, file in events[4:8]}
    assert events[4][1] == (tmp_path / 'model-0001.svrg').stat().st_ino
    assert events[8][1] == tmp_path.stat().st_ino


# A directory that is not there, or not ours

@pytest.mark.parametrize('make', [trained, trained_buckets])
def test_missing_directory(tmp_path, make):
    with pytest.raises(FileNotFoundError, match=r"No such.*missing/model-(\w+-)*(0001.params|symbol"
                                                r".json)'$"):
        make().save_checkpoint(str(tmp_path / 'missing' / 'model'), 1)
    assert not list(tmp_path.iterdir())


def save_as_nobody(prefix):
    module = trained()
    if os.geteuid() == 0:
        os.setuid(65534)
    for epoch in (1, 2):
        try:
            module.save_checkpoint(prefix, epoch, save_optimizer_states=True)
        except PermissionError as error:
            assert error.filename == prefix + '-symbol.json', error
        else:
            raise AssertionError('saved')


def test_directory_that_is_not_writable():
    folder = tempfile.mkdtemp()  # pytest's own is closed to others
    try:
        trained().save_checkpoint(folder + '/model', 1, save_optimizer_states=True)
        before = content(folder)
        os.chmod(folder, 0o555)
        in_a_process(save_as_nobody, folder + '/model')
        assert content(folder) == before
        fingerprint(folder + '/model', 1)
    finally:
        os.chmod(folder, 0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize('kind', ['0001.params', '0001.states', '0001.svrg', 'symbol.json'])
def test_directory_in_the_place_of_a_file(tmp_path, kind):
    prefix = str(tmp_path / 'model')
    module = trained()
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    os.remove('%s-%s' % (prefix, kind))
    os.mkdir('%s-%s' % (prefix, kind))
    before = content(tmp_path)
    with pytest.raises(IsADirectoryError, match='model-%s' % kind):
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert content(tmp_path) == before
    with pytest.raises((ValueError, IsADirectoryError), match='model-%s' % kind):
        load(prefix, 1)


# Processes that are killed, and that race

def loaded(prefix, epoch, whole):
    """Load a checkpoint if it is not refused; it must be one of those that are whole."""
    try:
        found = fingerprint(prefix, epoch)
    except (ValueError, FileNotFoundError) as error:
        assert re.search(r'model-(000%d\.(params|states|svrg)|symbol\.json)' % epoch, str(error))
        return False
    assert found in whole, 'a mix was loaded'
    return True


def save_and_die(module, prefix, epoch, step):
    """Save, and be killed before one of the steps of giving files their names."""
    steps = itertools.count()

    def killed_before(function):
        def call(*arguments):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)
        return call

    for name in ('fsync', 'chmod', 'replace'):
        setattr(os, name, killed_before(getattr(os, name)))
    module.save_checkpoint(prefix, epoch, save_optimizer_states=True)


def killed(prefix):
    first, second = trained(1), trained(3)
    folder = os.path.dirname(prefix)
    second.save_checkpoint(prefix, 1, save_optimizer_states=True)
    new = fingerprint(prefix, 1)
    first.save_checkpoint(prefix, 1, save_optimizer_states=True)
    old, before = fingerprint(prefix, 1), content(folder)
    outcomes = {1: [], 2: []}

    def check(epoch, status):
        outcomes[epoch].append(loaded(prefix, epoch, {old, new} if epoch == 1 else {new}))
        if epoch == 2:
            assert fingerprint(prefix, 1) == old
        assert os.WIFSIGNALED(status) or fingerprint(prefix, epoch) == new
        for file in Path(folder).iterdir():
            file.unlink()
        for name, whole in before.items():
            Path(folder, name).write_bytes(whole)

    for epoch in outcomes:
        for step in range(13):
            _, status = os.waitpid(fork(save_and_die, second, prefix, epoch, step), 0)
            assert os.WIFSIGNALED(status), step
            check(epoch, status)
    assert all(outcomes[1]) and outcomes[2] == [False] * 9 + [True] * 4
    for _ in range(25):
        epoch = random.choice((1, 2))
        pid = fork(second.save_checkpoint, prefix, epoch, True)
        time.sleep(random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        check(epoch, os.waitpid(pid, 0)[1])


def test_killed_while_saving(tmp_path):
    """The old checkpoint loads or the new one, and a half of the first is refused."""
    in_a_process(killed, tmp_path / 'model')


def save_slowly(module, prefix):
    """Save, and give the files their names so slowly that others do so meanwhile."""
    replace = os.replace

    def replace_later(*names):
        time.sleep(random.uniform(0, 0.03))
        replace(*names)

    os.replace = replace_later
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)


def racing(prefix):
    modules, whole = (trained(1), trained(3)), set()
    for module in modules:
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        whole.add(fingerprint(prefix, 1))
    files = set(content(os.path.dirname(prefix)))
    for _ in range(8):
        pids = [fork(save_slowly, module, prefix) for module in modules]
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
        assert loaded(prefix, 1, whole)
        assert set(content(os.path.dirname(prefix))) == files


def test_two_processes_that_save_the_same_epoch(tmp_path):
    in_a_process(racing, tmp_path / 'model')


@pytest.mark.parametrize('second', [name for n in (1, 2) for name in itertools.combinations(
    KINDS, n)])
def test_every_mix_of_two_checkpoints_is_refused(tmp_path, second):
    prefix = str(tmp_path / 'model')
    trained(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    trained(3).save_checkpoint(prefix, 2, save_optimizer_states=True)
    for kind in second:
        os.replace('%s-0002.%s' % (prefix, kind), '%s-0001.%s' % (prefix, kind))
    with pytest.raises(ValueError, match=r'model-0001\.(params|states).*model-0001\.svrg'):
        load(prefix, 1)


def test_network_that_was_saved_is_loaded_though_its_file_is_of_another(tmp_path):
    prefix = str(tmp_path / 'model')
    trained().save_checkpoint(prefix, 1)
    network = load(prefix, 1, False).symbol.tojson()
    problem = Problem('perceptron', rows=37)
    train(problem, problem.module(2), 0, 1).save_checkpoint(prefix, 2)
    load(prefix, 2, False)
    with pytest.warns(UserWarning, match=r'model-symbol\.json is not .*model-0001\.svrg'):
        assert load(prefix, 1, False).symbol.tojson() == network


def test_network_whose_operators_have_other_names_by_now(tmp_path):
    """MXNet numbers operators that have no name, over all networks of a process."""
    prefix = str(tmp_path / 'model')
    problem = Problem('softmax', rows=37)
    for epoch in (1, 2):
        hidden = mx.sym.Activation(mx.sym.Variable('data'), act_type='tanh')
        output = mx.sym.FullyConnected(hidden, num_hidden=3, name='fc')
        problem.symbol = mx.sym.SoftmaxOutput(output, mx.sym.Variable('label'), name='loss')
        train(problem, problem.module(2), 0, 1).save_checkpoint(prefix, epoch)
    names = [load(prefix, epoch, False).symbol.get_internals().list_outputs()[1]
             for epoch in (1, 2)]
    assert names[0] != names[1]


def test_symbol_that_another_version_of_mxnet_has_written(tmp_path):
    prefix, file = str(tmp_path / 'model'), tmp_path / 'model-symbol.json'
    trained().save_checkpoint(prefix, 1)
    text = file.read_text(encoding='utf-8')
    graph = json.loads(text)
    graph['attrs']['mxnet_version'][1] -= 1
    file.write_text(json.dumps(graph), encoding='utf-8')
    assert file.read_text(encoding='utf-8') != text
    load(prefix, 1, False)


def test_what_a_killed_process_has_left_is_found_by_its_content(tmp_path):
    prefix = str(tmp_path / 'model')
    first, second = trained(1), trained(3)
    first.save_checkpoint(prefix, 1, save_optimizer_states=True)
    os.replace(prefix + '-0001.params', prefix + '-0001.params.old')
    os.mkdir(prefix + '-0001.params.other')
    second.save_checkpoint(prefix, 2)
    shutil.copy(prefix + '-0002.params', prefix + '-0001.params')
    shutil.copy(prefix + '-0002.params', prefix + '-0001.params.another')
    with pytest.warns(UserWarning, match=r'params\.old was left .*-0001\.params: save'):
        weights = Checkpoint(prefix, 1, with_states=True).arg_params['fc_weight']
    np.testing.assert_array_equal(weights.asnumpy(),
                                  first.get_params()[0]['fc_weight'].asnumpy())
    os.remove(prefix + '-0001.params.old')
    with pytest.raises(ValueError, match=r'model-0001\.params is not .*model-0001\.svrg'):
        load(prefix, 1)


@pytest.mark.parametrize('write', [os.replace, shutil.copy])
def test_parameters_that_are_saved_anew_while_they_are_loaded(monkeypatch, tmp_path, write):
    prefix = str(tmp_path / 'model')
    trained(1).save_checkpoint(prefix, 1)
    trained(3).save_checkpoint(prefix, 2)

    def read(name):
        write(prefix + '-0002.params', prefix + '-0001.params')
        return mx.nd.load.__wrapped__(name)

    read.__wrapped__ = mx.nd.load
    monkeypatch.setattr(mx.nd, 'load', read)
    with pytest.raises(ValueError, match=r'model-0001\.params was saved anew while it was loaded'):
        load(prefix, 1, False)


@pytest.mark.parametrize('given', [1, 2, 3])
@pytest.mark.parametrize('error', [KeyboardInterrupt, PermissionError])
def test_what_fails_while_names_are_given_loses_nothing(monkeypatch, tmp_path, given, error):
    prefix = str(tmp_path / 'model')
    trained(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    second = trained(3)
    second.save_checkpoint(prefix, 2, save_optimizer_states=True)
    replace, names = os.replace, []

    def fail(*arguments):
        if len(names) == given:
            raise error
        names.append(arguments)
        replace(*arguments)

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(os, 'replace', fail)
        second.save_checkpoint(prefix, 1, save_optimizer_states=True)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.* was left by a process')
        assert fingerprint(prefix, 1) == fingerprint(prefix, 2)
    second.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert fingerprint(prefix, 1) == fingerprint(prefix, 2)


def test_directory_that_somebody_has_locked(tmp_path):
    prefix, module = str(tmp_path / 'model'), trained()
    handle = os.open(str(tmp_path), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        module.save_checkpoint(prefix, 1)
        load(prefix, 1, False)
    finally:
        os.close(handle)


def test_states_that_were_left_are_not_taken_for_others(tmp_path):
    prefix = str(tmp_path / 'model')
    trained(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    shutil.copy(prefix + '-0001.states', prefix + '-0001.states.left')
    module = bound(load(prefix, 1), Problem('softmax', rows=37, features=900))
    trained(3).save_checkpoint(prefix, 1, save_optimizer_states=True)
    with pytest.raises(ValueError, match=r'model-0001\.states is not the file'):
        module.init_optimizer()


def test_states_that_are_saved_anew_after_loading(tmp_path):
    """They are read when the optimizer is installed, and must be those of the weights."""
    prefix = str(tmp_path / 'model')
    trained(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = bound(load(prefix, 1), Problem('softmax', rows=37, features=900))
    trained(3).save_checkpoint(prefix, 1, save_optimizer_states=True)
    with pytest.raises(ValueError, match=r'model-0001\.states is not the file'):
        module.init_optimizer()


# Damage

@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory):
    """Save an SVRGModule and an SVRGBucketingModule; return how each is loaded."""
    folder = tmp_path_factory.mktemp('checkpoints')
    problem = Problem('softmax', rows=37)
    train(problem, problem.module(2), 0, 1).save_checkpoint(str(folder / 'plain'), 1, True)
    trained_buckets().save_checkpoint(str(folder / 'buckets'), 1, True)
    return {
        'plain': (folder / 'plain', lambda prefix: load(prefix, 1)),
        'buckets': (folder / 'buckets', lambda prefix: SVRGBucketingModule.load(
            prefix, 1, Sequences().sym_gen, max(LENGTHS), True))}


@contextlib.contextmanager
def damaged(prefix, kind):
    """Yield a file and its content, and mend it in the end."""
    file = Path('%s-0001.%s' % (prefix, kind))
    whole = file.read_bytes()
    try:
        yield file, whole
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize('which, kind, step', [
    ('plain', 'params', 3), ('plain', 'states', 3), ('plain', 'svrg', 1),
    ('buckets', 'params', 7), ('buckets', 'states', 7), ('buckets', 'svrg', 13)])
def test_changed_bits_are_refused(checkpoints, which, kind, step):
    prefix, read = checkpoints[which]
    message = r'-0001\.%s' % kind
    with damaged(prefix, kind) as (file, whole):
        for i in range(0, len(whole), step):
            file.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1:])
            with pytest.raises(ValueError, match=message):
                read(prefix)
    read(prefix)


@pytest.mark.parametrize('which, key', [('plain', None), ('buckets', max(LENGTHS))])
def test_changed_bits_of_symbols_are_refused_or_change_nothing(checkpoints, which, key):
    prefix = str(checkpoints[which][0])
    file = Path(file_names(prefix, 1, key)['symbol'])
    whole = file.read_bytes()

    def read():
        return Checkpoint(prefix, 1, False, key).symbol.tojson()

    network = read()
    try:
        for i in range(len(whole)):
            file.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1:])
            with warnings.catch_warnings():
                warnings.filterwarnings('ignore', '.*symbol.json is not the network')
                try:
                    assert read() == network
                except ValueError as error:
                    assert file.name in str(error)
    finally:
        file.write_bytes(whole)
    assert read() == network


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('which', ['plain', 'buckets'])
def test_truncated_files_are_refused(checkpoints, which, kind):
    prefix, read = checkpoints[which]
    with damaged(prefix, kind) as (file, whole):
        for length in {*range(0, len(whole), 41), *range(len(whole) - 70, len(whole))}:
            file.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=r'-0001\.%s' % kind):
                read(prefix)
        file.write_bytes(whole + b'\0')
        with pytest.raises(ValueError, match=r'-0001\.%s' % kind):
            read(prefix)


def test_truncated_symbols_are_refused(tmp_path):
    prefix = str(tmp_path / 'model')
    trained().save_checkpoint(prefix, 1)
    file = tmp_path / 'model-symbol.json'
    whole = file.read_bytes()
    for length in range(0, len(whole), 9):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r'model-symbol\.json'):
            load(prefix, 1, False)


# Pickles

class CreatesAFile:
    def __init__(self, name):
        self.name = str(name)

    def __reduce__(self):
        return open, (self.name, 'w')


@pytest.fixture
def trapped(tmp_path):
    """Save a checkpoint with states that create a file when they are unpickled."""
    problem = Problem('softmax', rows=37)
    prefix = str(tmp_path / 'model')
    train(problem, problem.module(2), 0, 1, prefix=prefix)
    Path(prefix + '-0001.states').write_bytes(pickle.dumps(CreatesAFile(tmp_path / 'trap')))
    return problem, prefix, tmp_path / 'trap'


@pytest.mark.parametrize('svrg', [True, False])
def test_states_are_unpickled_only_when_they_are_asked_for(trapped, svrg):
    problem, prefix, trap = trapped
    if not svrg:
        os.remove(prefix + '-0001.svrg')
    module = load(prefix, 1, load_optimizer_states=False)
    train(problem, module, 1, 2)
    assert not trap.exists()
    with contextlib.suppress(ValueError):
        load(prefix, 1, load_optimizer_states=True)
    assert trap.exists() is not svrg, 'what .svrg does not know is not unpickled'


def test_states_are_unpickled_by_load_optimizer_states(trapped):
    problem, prefix, trap = trapped
    module = bound(load(prefix, 1, False), problem)
    module.init_optimizer()
    assert not trap.exists()
    with pytest.raises(ValueError, match='no file of optimizer states'):
        module.load_optimizer_states(prefix + '-0001.states')
    assert trap.exists()


def test_svrg_file_holds_no_pickles(checkpoints):
    prefix, _ = checkpoints['plain']
    with np.load(str(prefix) + '-0001.svrg', allow_pickle=False) as file:
        assert all(array.dtype != object for array in dict(file).values())

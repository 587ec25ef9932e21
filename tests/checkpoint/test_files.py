"""Files of both front ends: damaged ones, full disks, killed processes, and no pickles."""

import contextlib
import itertools
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks
from checkpoints import (
    bits,
    bound,
    content,
    fingerprint,
    load,
    train,
    trained_buckets,
    trained_on_pages,
)
from problems import Problem
from processes import in_a_process
from sequences import LENGTHS, Sequences
from svrg_optimization import SVRGBucketingModule, SVRGModule
from svrg_optimization.checkpoint.files import read, write

# Damage

DAMAGE = {
    'truncated': lambda whole: whole[:len(whole) // 2],
    'foreign': lambda whole: b'this is another file' * 20,
    'empty': lambda whole: b'',
    'a changed byte': lambda whole: whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
    'a pickle': lambda whole: pickle.dumps([1, 2]),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_file_is_named(saved, damage):
    name = saved + '-0003.svrg'
    Path(name).write_bytes(DAMAGE[damage](Path(name).read_bytes()))
    with pytest.raises(ValueError, match='model-0003.svrg is damaged, or no file of SVRGModule'):
        load(saved, 3)
    load(saved, 2)


@pytest.mark.parametrize('missing', [False, True])
@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
def test_other_files_are_not_read(saved, kind, missing):
    """So that they cannot be of another checkpoint."""
    expected, name = load(saved, 3), Path('%s-%s' % (saved, kind))
    name.unlink() if missing else name.write_bytes(b'of something else')
    found = load(saved, 3)
    assert found.symbol.tojson() == expected.symbol.tojson()
    for module in (found, expected):
        train(Problem('softmax', rows=37), module, 3, 4)
    assert bits(found) == bits(expected)


@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
def test_without_ours_the_files_of_plain_module_are_read_and_it_is_told(saved, kind):
    expected = bits(bound(load(saved, 3), Problem('softmax', rows=37)))
    os.remove(saved + '-0003.svrg')
    with pytest.warns(UserWarning, match='model-0003.svrg is not there: .*model-0003.params is '
                                         'loaded as the checkpoint of a plain Module, which has no'
                                         'ne, .* copy that file too'):
        module = load(saved, 3, tol=1.)
    problem = Problem('softmax', rows=37)
    assert (module.update_freq, module.tol, bits(bound(module, problem))) == (1, 1., expected)
    name = Path('%s-%s' % (saved, kind))
    if kind != '0003.states':  # which are unpickled when the optimizer is installed
        name.write_bytes(name.read_bytes()[:100])
        with pytest.raises(ValueError, match='model-%s is damaged' % kind), pytest.warns(
                UserWarning):
            load(saved, 3)
    name.unlink()
    with pytest.raises(FileNotFoundError, match='model-%s' % kind):
        load(saved, 3)


def test_a_file_that_holds_no_parameters_is_refused(prefix):
    Problem().bound().symbol.save(prefix + '-symbol.json')
    for saved in ([mx.nd.ones(2)], {'fc_weight': mx.nd.ones(2)}):
        mx.nd.save(prefix + '-0001.params', saved)
        with pytest.raises(ValueError, match='model-0001.params is no file of parameters'), \
                pytest.warns(UserWarning, match='is not there'):
            load(prefix, 1, False)


def test_files_of_other_classes_and_formats_are_refused(prefix):
    write(prefix + '-0001.svrg', 'SVRGTrainer', {})
    with pytest.raises(ValueError, match='model-0001.svrg must be saved by SVRGModule in format '
                                         '3, and was by SVRGTrainer in format 3'):
        load(prefix, 1)


def checkpoint(folder):
    train(Problem('softmax', rows=37), Problem('softmax', rows=37).module(2), 0, 1).save_checkpoint(
        str(folder / 'model'), 1, True)
    return folder / 'model-0001.svrg', 'SVRGModule'


def states(folder):
    trainer = Blocks('perceptron').trainer(Blocks('perceptron').net())
    trainer.update_full_grads(Blocks('perceptron').loader())
    trainer.save_states(str(folder / 'states'))
    return folder / 'states', 'SVRGTrainer'


def flat(value):
    """Return what is in a file as text and bytes."""
    if isinstance(value, dict):
        return {name: flat(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(flat, value))
    value = value.asnumpy() if isinstance(value, mx.nd.NDArray) else value
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize('make, step', [
    pytest.param(make, step, marks=[pytest.mark.slow] if step == 1 else [])
    for make in (checkpoint, states) for step in (1, 53)])
def test_each_changed_bit_is_refused_or_changes_nothing(tmp_path, make, step):
    name, saved_by = make(tmp_path)
    whole, expected, refused = name.read_bytes(), flat(read(name, saved_by)), 0
    for i in range(0, len(whole), step):
        for changed in (whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1:], whole[:i]):
            name.write_bytes(changed)
            try:
                assert flat(read(name, saved_by)) == expected
            except ValueError as error:
                assert str(error).startswith(str(name))
                refused += 1
    assert refused > 1.5 * len(whole) / step


# Pickles

class CreatesAFile:
    def __init__(self, name):
        self.name = str(name)

    def __reduce__(self):
        return open, (self.name, 'w')


@pytest.mark.filterwarnings('ignore:.*model-0003.svrg is not there')
@pytest.mark.parametrize('svrg', [True, False])
def test_states_are_unpickled_only_where_plain_module_has_saved_them(saved, tmp_path, svrg):
    problem, trap = Problem('softmax', rows=37), tmp_path / 'trap'
    Path(saved + '-0003.states').write_bytes(pickle.dumps(CreatesAFile(trap)))
    if not svrg:
        os.remove(saved + '-0003.svrg')
    train(problem, load(saved, 3, load_optimizer_states=False), 3, 4)
    module = load(saved, 3)
    assert not trap.exists()
    with contextlib.nullcontext() if svrg else pytest.raises(ValueError, match='optimizer states'):
        train(problem, module, 3, 4)
    assert trap.exists() is not svrg


@pytest.mark.parametrize('make', [checkpoint, states])
def test_files_hold_no_pickles_and_read_none(tmp_path, make):
    name, saved_by = make(tmp_path)
    with np.load(str(name), allow_pickle=False) as file:
        arrays = dict(file)
    assert all(array.dtype != object for array in arrays.values())
    np.savez(str(name) + '.npz', **{**arrays, '0': np.array([CreatesAFile(tmp_path / 'trap')])})
    with pytest.raises(ValueError, match='allow_pickle=False'):
        read(str(name) + '.npz', saved_by)
    assert not (tmp_path / 'trap').exists()


def test_states_that_need_a_pickle_are_refused(prefix):
    class Odd(mx.optimizer.SGD):
        def create_state(self, index, weight):
            return {1, 2}

        def update(self, index, weight, grad, state):
            weight -= self.lr * grad

    problem = Problem()
    module = problem.bound(alpha=0)
    module.init_optimizer(optimizer=Odd(rescale_grad=0.1))
    module.forward_backward(next(problem.iterator()))
    module.update()
    with pytest.raises(TypeError, match='must be None, numbers, .*not {1, 2}'):
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert not list(Path(prefix).parent.iterdir())
    module.save_checkpoint(prefix, 1)


# Disks

def save_with_small_files(module, prefix):
    """Save with limits for the size of files, which fail in each of them and at each part of it."""
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    before = content(os.path.dirname(prefix))
    sizes = sorted(len(file) for file in before.values())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in sorted({0, 1, 4096, *(size - left for size in sizes for left in (20, 1))}):
        for epoch in (1, 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                with pytest.raises(OSError, match='File too large|could not write it whole') as no:
                    module.save_checkpoint(prefix, epoch, save_optimizer_states=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            assert no.value.filename.startswith(prefix), no
            assert content(os.path.dirname(prefix)) == before, limit


def full_disk(prefix):
    save_with_small_files(trained_on_pages(), prefix)
    fingerprint(prefix, 1)


def full_disk_with_buckets(prefix):
    save_with_small_files(trained_buckets(), prefix)
    SVRGBucketingModule.load(prefix, 1, Sequences().sym_gen, max(LENGTHS), True)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('function', [full_disk, full_disk_with_buckets])
def test_files_that_cannot_grow_leave_the_old_checkpoint_whole(tmp_path, function):
    assert 'Exception ignored' not in in_a_process(function, tmp_path / 'model')


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 60 pages."""
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=240k', 'tmpfs', str(tmp_path)],
                             check=False, stderr=subprocess.DEVNULL)
    if mounted.returncode:
        pytest.skip('may not mount a disk: a container needs CAP_SYS_ADMIN')
    yield tmp_path
    subprocess.run(['umount', str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid() != 0, reason='only root may mount')
def test_a_full_disk_leaves_the_old_checkpoint_whole(small_disk):
    """Saving fails and changes nothing, or gives a whole checkpoint."""
    module, prefix = trained_on_pages(), str(small_disk / 'model')
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    failures = 0
    for free in range(60):
        with open(small_disk / 'filler', 'wb', buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            filler.truncate(os.fstat(filler.fileno()).st_size - 4096 * free)
        before = content(small_disk)
        try:
            module.save_checkpoint(prefix, 2, save_optimizer_states=True)
        except OSError as error:
            assert error.filename.startswith(prefix)
            assert content(small_disk) == before
            failures += 1
        else:
            break
    assert failures >= 5
    assert fingerprint(prefix, 1) == fingerprint(prefix, 2)


def test_files_and_their_folder_are_flushed_before_and_after_they_get_their_names(
        monkeypatch, tmp_path):
    events = []

    def recorded(function, of):
        def call(*arguments):
            function(*arguments)
            events.append((function.__name__, of(*arguments).st_ino))
        return call

    monkeypatch.setattr(os, 'fsync', recorded(os.fsync, os.fstat))
    monkeypatch.setattr(os, 'replace', recorded(os.replace, lambda _, name: os.stat(name)))
    trained_on_pages().save_checkpoint(str(tmp_path / 'model'), 1, save_optimizer_states=True)
    assert [event for event, _ in events] == ['fsync'] * 4 + ['replace'] * 4 + ['fsync']
    assert [file for _, file in events[:4]] == [file for _, file in events[4:8]]
    assert events[7][1] == (tmp_path / 'model-0001.svrg').stat().st_ino
    assert events[8][1] == tmp_path.stat().st_ino


@pytest.mark.parametrize('make', [trained_on_pages, trained_buckets])
def test_a_missing_directory_is_named_and_not_made(tmp_path, make):
    with pytest.raises(FileNotFoundError, match=r"No such.*missing/model-(\w+-)*symbol.json'$"):
        make().save_checkpoint(str(tmp_path / 'missing' / 'model'), 1)
    assert not list(tmp_path.iterdir())


def save_as_nobody(prefix):
    module = trained_on_pages()
    if os.geteuid() == 0:
        os.setuid(65534)
    with pytest.raises(PermissionError, match=prefix + '-symbol.json'):
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)


@pytest.mark.process
@pytest.mark.slow
def test_a_directory_that_is_not_writable_keeps_its_checkpoint():
    folder = tempfile.mkdtemp()  # pytest's own is closed to others
    try:
        trained_on_pages().save_checkpoint(folder + '/model', 1, save_optimizer_states=True)
        before = content(folder)
        os.chmod(folder, 0o555)
        in_a_process(save_as_nobody, folder + '/model')
        assert content(folder) == before
    finally:
        os.chmod(folder, 0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize('kind', ['0003.params', '0003.states', '0003.svrg', 'symbol.json'])
def test_a_directory_in_the_place_of_a_file_is_named(saved, kind):
    module = train(Problem('softmax', rows=37), load(saved, 2), 2, 3)
    os.remove('%s-%s' % (saved, kind))
    os.mkdir('%s-%s' % (saved, kind))
    before = content(os.path.dirname(saved))
    with pytest.raises(IsADirectoryError, match='model-%s' % kind):
        module.save_checkpoint(saved, 3, save_optimizer_states=True)
    assert content(os.path.dirname(saved)) == before


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
@pytest.mark.parametrize('owner, fails', [
    (SVRGModule, 'save_params'), (SVRGModule, 'save_optimizer_states'),
    (np.lib.format, 'write_array'), (os, 'fsync')])
def test_a_failure_while_saving_leaves_the_files_as_they_were(monkeypatch, saved, owner, fails,
                                                              error):
    before = content(os.path.dirname(saved))
    module = train(Problem('softmax', rows=37), load(saved, 3), 3, 4)

    def fail(*_, **__):
        raise error('at once')

    with monkeypatch.context() as patch, pytest.raises(error, match='at once'):
        patch.setattr(owner, fails, fail)
        module.save_checkpoint(saved, 3, save_optimizer_states=True)
    assert content(os.path.dirname(saved)) == before


def test_modes_are_those_of_a_new_file_or_of_the_one_before(saved):
    module, mask = train(Problem('softmax', rows=37), load(saved, 3), 3, 4), os.umask(0o027)
    try:
        os.chmod(saved + '-0003.svrg', 0o604)
        for epoch in (3, 9):
            module.save_checkpoint(saved, epoch)
    finally:
        assert os.umask(mask) == 0o027
    modes = [os.stat('%s-%04d.svrg' % (saved, epoch)).st_mode & 0o777 for epoch in (3, 9)]
    assert modes == [0o604, 0o640]


def test_symbolic_links_are_written_through(saved, tmp_path):
    """As Module does, so that who reads the target reads the new file."""
    module = train(Problem('softmax', rows=37), load(saved, 3), 3, 4)
    (tmp_path / 'elsewhere').mkdir()
    link, target = Path(saved + '-0003.svrg'), tmp_path / 'elsewhere' / 'target'
    link.rename(target)
    link.symlink_to(target)
    module.save_checkpoint(saved, 3, save_optimizer_states=True)
    assert link.is_symlink() and list((tmp_path / 'elsewhere').iterdir()) == [target]
    assert bits(bound(load(saved, 3), Problem('softmax', rows=37))) == bits(module)


@pytest.mark.parametrize('letter', ['p', 'é'])
def test_long_prefixes_can_be_saved_and_loaded(tmp_path, letter):
    """The longest name of a file is prefix-symbol.json, and file systems take 255 bytes."""
    prefix = str(tmp_path / (letter * (243 // len(letter.encode()))))
    problem = Problem('softmax', rows=37)
    module = train(problem, problem.module(2), 0, 1, prefix=prefix)
    assert bits(bound(load(prefix, 1), problem)) == bits(module)


# Killed processes

def fork(function, *arguments):
    """Run a function in a copy of this process; return its id."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        function(*arguments)
        os._exit(0)
    os._exit(1)


def save_and_die(module, prefix, epoch, step):
    """Save, and be killed before one of the steps of giving files their names."""
    steps = itertools.count()

    def killed_before(function):
        def call(*arguments):
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)
        return call

    for name in ('fsync', 'replace'):
        setattr(os, name, killed_before(getattr(os, name)))
    module.save_checkpoint(prefix, epoch, save_optimizer_states=True)


def killed(prefix):
    first, second = trained_on_pages(1), trained_on_pages(3)
    folder = os.path.dirname(prefix)
    second.save_checkpoint(prefix, 1, save_optimizer_states=True)
    new = fingerprint(prefix, 1)
    first.save_checkpoint(prefix, 1, save_optimizer_states=True)
    old, before, outcomes = fingerprint(prefix, 1), content(folder), {1: [], 2: []}

    def check(epoch, status):
        is_there = os.path.exists('%s-%04d.svrg' % (prefix, epoch))
        outcomes[epoch].append(is_there and fingerprint(prefix, epoch))
        assert outcomes[epoch][-1] in ([old, new] if epoch == 1 else [False, new])
        assert epoch == 1 or fingerprint(prefix, 1) == old
        assert os.WIFSIGNALED(status) or outcomes[epoch][-1] == new
        for file in Path(folder).iterdir():
            file.unlink()
        for name, whole in before.items():
            Path(folder, name).write_bytes(whole)

    for epoch in outcomes:
        for step in range(9):
            _, status = os.waitpid(fork(save_and_die, second, prefix, epoch, step), 0)
            assert os.WIFSIGNALED(status), step
            check(epoch, status)
    assert outcomes == {1: [old] * 8 + [new], 2: [False] * 8 + [new]}
    for _ in range(25):
        epoch = random.choice((1, 2))
        pid = fork(second.save_checkpoint, prefix, epoch, True)
        time.sleep(random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        check(epoch, os.waitpid(pid, 0)[1])


@pytest.mark.process
@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_old_checkpoint_or_the_new(tmp_path):
    in_a_process(killed, tmp_path / 'model')

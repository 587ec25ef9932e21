"""Checkpoints on full and forbidden disks, and under names that are links, or long."""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

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
from svrg_optimization import SVRGBucketingModule


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
    save_with_small_files(trained_on_pages(), prefix)
    fingerprint(prefix, 1)


def full_disk_with_buckets(prefix):
    save_with_small_files(trained_buckets(), prefix)
    SVRGBucketingModule.load(prefix, 1, Sequences().sym_gen, max(LENGTHS), True)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('function', [full_disk, full_disk_with_buckets])
def test_files_that_cannot_grow_leave_the_old_checkpoint_whole(tmp_path, function):
    output = in_a_process(function, tmp_path / 'model')
    assert 'Exception ignored' not in output


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 40 pages."""
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=160k', 'tmpfs', str(tmp_path)],
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
    trained_on_pages().save_checkpoint(str(tmp_path / 'model'), 1, save_optimizer_states=True)
    names = ['fsync'] * 4 + ['replace'] * 4
    assert [name for name, _ in events] == names
    assert {file for _, file in events[:4]} == {file for _, file in events[4:8]}
    assert events[4][1] == (tmp_path / 'model-0001.svrg').stat().st_ino


# A directory that is not there, or not ours

@pytest.mark.parametrize('make', [trained_on_pages, trained_buckets])
def test_a_missing_directory_is_named_and_not_made(tmp_path, make):
    with pytest.raises(FileNotFoundError, match=r"No such.*missing/model-(\w+-)*(0001.params|symbol"
                                                r".json)'$"):
        make().save_checkpoint(str(tmp_path / 'missing' / 'model'), 1)
    assert not list(tmp_path.iterdir())


def save_as_nobody(prefix):
    module = trained_on_pages()
    if os.geteuid() == 0:
        os.setuid(65534)
    for epoch in (1, 2):
        try:
            module.save_checkpoint(prefix, epoch, save_optimizer_states=True)
        except PermissionError as error:
            assert error.filename == prefix + '-symbol.json', error
        else:
            raise AssertionError('saved')


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
        fingerprint(folder + '/model', 1)
    finally:
        os.chmod(folder, 0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize('kind', ['0001.params', '0001.states', '0001.svrg', 'symbol.json'])
def test_a_directory_in_the_place_of_a_file_is_named(tmp_path, kind):
    prefix = str(tmp_path / 'model')
    module = trained_on_pages()
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    os.remove('%s-%s' % (prefix, kind))
    os.mkdir('%s-%s' % (prefix, kind))
    before = content(tmp_path)
    with pytest.raises(IsADirectoryError, match='model-%s' % kind):
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert content(tmp_path) == before
    if kind != 'symbol.json':  # .svrg has a copy
        with pytest.raises((ValueError, IsADirectoryError), match='model-%s' % kind):
            load(prefix, 1)


@pytest.mark.parametrize('fails', ['save_params', 'save_optimizer_states'])
def test_failure_while_saving_leaves_the_files_as_they_were(monkeypatch, saved, fails):
    folder = Path(saved).parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    problem = Problem('softmax', rows=37)
    module = train(problem, load(saved, 3), 3, 4)

    def fail(name):
        Path(name).write_bytes(b'half')
        raise OSError('no space left')

    monkeypatch.setattr(module, fails, fail)
    with pytest.raises(OSError, match='no space left'):
        module.save_checkpoint(saved, 3, save_optimizer_states=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_an_interruption_while_the_archive_is_written_is_passed_on(monkeypatch, saved):
    """It stays one: closing the archive must not hide it behind an error of its own."""
    module = load(saved, 3)
    opened = zipfile.ZipFile.open

    class Interrupted:
        def __init__(self, member):
            self.member = member

        def __enter__(self):
            raise KeyboardInterrupt

        def __exit__(self, *_):
            """Not reached."""

    monkeypatch.setattr(zipfile.ZipFile, 'open',
                        lambda *args, **kwargs: Interrupted(opened(*args, **kwargs)))
    before = Path(saved + '-0003.svrg').read_bytes()
    with pytest.raises(KeyboardInterrupt):
        module.save_checkpoint(saved, 3)
    assert Path(saved + '-0003.svrg').read_bytes() == before


def test_permissions_follow_the_umask(saved):
    mask = os.umask(0o027)
    try:
        problem = Problem('softmax', rows=37)
        bound(load(saved, 3), problem).save_checkpoint(saved, 9)
    finally:
        os.umask(mask)
    assert os.stat(saved + '-0009.svrg').st_mode & 0o777 == 0o640


def test_symbolic_links_are_written_through(prefix, tmp_path):
    """As Module does, so that who reads the target reads the new file."""
    problem = Problem('softmax', rows=37)
    module = train(problem, problem.module(2), 0, 1, prefix=prefix)
    (tmp_path / 'elsewhere').mkdir()
    links = []
    for name in ('model-symbol.json', 'model-0001.params', 'model-0001.states',
                 'model-0001.svrg'):
        link, target = tmp_path / name, tmp_path / 'elsewhere' / ('target of ' + name)
        link.rename(target)
        link.symlink_to(target)
        links.append((link, target))
    train(problem, module, 1, 2)
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert all(link.is_symlink() and link.resolve() == target for link, target in links)
    assert bits(load(prefix, 1)) == bits(module)
    assert sorted(path.name for path in (tmp_path / 'elsewhere').iterdir()) == sorted(
        target.name for _, target in links)


@pytest.mark.parametrize('length', [200, 234, 235, 243])
@pytest.mark.parametrize('letter', ['p', 'é'])
def test_long_prefixes_can_be_saved_and_loaded(tmp_path, length, letter):
    """The longest name of a file is prefix-symbol.json, and file systems take 255 bytes."""
    prefix = str(tmp_path / (letter * (length // len(letter.encode()))))
    problem = Problem('softmax', rows=37)
    module = train(problem, problem.module(2), 0, 1, prefix=prefix)
    assert bits(load(prefix, 1)) == bits(module)

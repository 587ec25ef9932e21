"""Checkpoints that are damaged, or hold what somebody else has put there."""

import contextlib
import json
import os
import pickle
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from checkpoints import (
    bound,
    load,
    train,
    trained_buckets,
    trained_on_pages,
    write_with_checksum,
)
from problems import Problem
from sequences import LENGTHS, Sequences
from svrg_optimization import SVRGBucketingModule, SVRGModule

KINDS = ('params', 'states', 'svrg')
DAMAGE = {
    'truncated': lambda content: content[:len(content) // 2],
    'foreign': lambda content: b'this is another file' * 20,
    'empty': lambda content: b'',
    'a changed byte': lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    'a changed end': lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@pytest.mark.parametrize('damage', ['truncated', 'foreign', 'a changed byte', 'a changed end'])
@pytest.mark.parametrize('kind', ['params', 'states', 'svrg'])
def test_damaged_file_is_named(saved, kind, damage):
    name = '%s-0003.%s' % (saved, kind)
    Path(name).write_bytes(DAMAGE[damage](Path(name).read_bytes()))
    with pytest.raises(ValueError, match='model-0003.%s' % kind):
        load(saved, 3)
    load(saved, 2)


@pytest.mark.parametrize('damage', ['truncated', 'empty', 'foreign'])
@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
def test_damaged_file_of_plain_module_is_named(saved, kind, damage):
    os.remove(saved + '-0003.svrg')
    name = '%s-%s' % (saved, kind)
    Path(name).write_bytes(DAMAGE[damage](Path(name).read_bytes()))
    with pytest.raises(ValueError, match='model-%s' % kind):
        load(saved, 3)


@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
@pytest.mark.parametrize('svrg', [True, False])
def test_missing_file_is_named(saved, kind, svrg):
    os.remove('%s-%s' % (saved, kind))
    if not svrg:
        os.remove(saved + '-0003.svrg')
    elif kind == 'symbol.json':
        load(saved, 3)  # .svrg has a copy
        return
    with pytest.raises(FileNotFoundError, match='model-%s' % kind):
        load(saved, 3)


def test_states_that_were_not_saved_cannot_be_loaded(prefix):
    problem = Problem()
    train(problem, problem.module(2), 0, 1, prefix=prefix, states=False)
    assert load(prefix, 1, False)._loaded.snapshot is not None
    with pytest.raises(ValueError, match='saved without .*model-0001.states'):
        load(prefix, 1)


def test_a_file_that_holds_no_parameters_is_refused(tmp_path):
    problem, prefix = Problem(rows=40), str(tmp_path / 'model')
    problem.bound().symbol.save(prefix + '-symbol.json')
    for saved in ([mx.nd.ones(2)], {'fc_weight': mx.nd.ones(2)}):
        mx.nd.save(prefix + '-0001.params', saved)
        with pytest.raises(ValueError, match='model-0001.params is no file of parameters'):
            SVRGModule.load(prefix, 1, label_names=('label',))


@pytest.mark.parametrize('facts, message', [
    ({'format': 99}, 'model-0003.svrg was saved by a newer version: it has format 99'),
    ({'format': 2, 'update_freq': 2}, 'model-0003.svrg is no checkpoint of SVRG'),
    ({}, 'model-0003.svrg is truncated or no checkpoint of SVRG'),
    ([], 'model-0003.svrg is truncated or no checkpoint of SVRG'),
])
def test_other_formats_are_refused(saved, facts, message):
    name = saved + '-0003.svrg'
    with np.load(name) as file:
        arrays = dict(file)
    arrays['facts'] = np.array(json.dumps(facts))
    write_with_checksum(name, **arrays)
    with pytest.raises(ValueError, match=message):
        load(saved, 3)


def test_facts_of_a_newer_version_are_told(saved):
    name = saved + '-0003.svrg'
    with np.load(name) as file:
        arrays = dict(file)
    facts = {**json.loads(str(arrays['facts'])), 'temperature': 1, 'phase': 2}
    write_with_checksum(name, **{**arrays, 'facts': np.array(json.dumps(facts))})
    with pytest.raises(ValueError, match='model-0003.svrg was saved by a newer version: it has '
                                         'format 2 with phase with temperature, and this'):
        load(saved, 3)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_truncated_symbols_are_refused(tmp_path):
    prefix = str(tmp_path / 'model')
    trained_on_pages().save_checkpoint(prefix, 1)
    os.remove(prefix + '-0001.svrg')  # it has a copy
    file = tmp_path / 'model-symbol.json'
    whole = file.read_bytes()
    for length in range(0, len(whole), 9):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r'model-symbol\.json'):
            load(prefix, 1, False)


def test_pickles_are_not_read_in_the_svrg_file(saved):
    name = saved + '-0003.svrg'
    write_with_checksum(name, facts=np.array([object()]))
    with pytest.raises(ValueError, match='model-0003.svrg is truncated .* allow_pickle=False'):
        load(saved, 3)


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

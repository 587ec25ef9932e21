"""Checkpoints by processes that are killed, and mixes of two checkpoints."""

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from checkpoints import (
    content,
    fingerprint,
    load,
    train,
    trained_on_pages,
)
from problems import Problem
from processes import in_a_process
from svrg_optimization.checkpoint.format import Checkpoint

KINDS = ('params', 'states', 'svrg')


def fork(function, *arguments):
    """Run a function in a copy of this process; return its id."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        function(*arguments)
        os._exit(0)
    os._exit(1)


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
    first, second = trained_on_pages(1), trained_on_pages(3)
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
        for step in range(12):
            _, status = os.waitpid(fork(save_and_die, second, prefix, epoch, step), 0)
            assert os.WIFSIGNALED(status), step
            check(epoch, status)
    assert all(outcomes[1]) and outcomes[2] == [False] * 9 + [True] * 3
    for _ in range(25):
        epoch = random.choice((1, 2))
        pid = fork(second.save_checkpoint, prefix, epoch, True)
        time.sleep(random.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        check(epoch, os.waitpid(pid, 0)[1])


@pytest.mark.process
@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_old_checkpoint_or_the_new(tmp_path):
    """The old checkpoint loads or the new one, and a half of the first is refused."""
    in_a_process(killed, tmp_path / 'model')


@pytest.fixture(scope='module')
def two_trainings(tmp_path_factory):
    """Save two trainings as two epochs."""
    folder = tmp_path_factory.mktemp('two')
    for epoch, length in ((1, 1), (2, 3)):
        trained_on_pages(length).save_checkpoint(str(folder / 'model'), epoch, True)
    return folder


@pytest.mark.parametrize('second', [name for n in (1, 2) for name in itertools.combinations(
    KINDS, n)])
def test_every_mix_of_two_checkpoints_is_refused(two_trainings, tmp_path, second):
    """Two of its files are named, one of them being .svrg."""
    for file in two_trainings.iterdir():
        shutil.copy(str(file), str(tmp_path))
    prefix = str(tmp_path / 'model')
    for kind in second:
        os.replace('%s-0002.%s' % (prefix, kind), '%s-0001.%s' % (prefix, kind))
    others = second[0] if second in (('params',), ('states',)) else '(params|states)'
    with pytest.raises(ValueError, match=r'model-0001\.%s.*model-0001\.svrg' % others):
        load(prefix, 1)


def test_network_that_was_saved_is_loaded_though_its_file_is_of_another(tmp_path):
    prefix = str(tmp_path / 'model')
    trained_on_pages().save_checkpoint(prefix, 1)
    network = load(prefix, 1, False).symbol.tojson()
    problem = Problem('perceptron', rows=37)
    train(problem, problem.module(2), 0, 1).save_checkpoint(prefix, 2)
    assert load(prefix, 2, False).symbol.tojson() != network
    assert load(prefix, 1, False).symbol.tojson() == network


def test_what_a_killed_process_has_left_is_found_by_its_content(tmp_path):
    prefix = str(tmp_path / 'model')
    first, second = trained_on_pages(1), trained_on_pages(3)
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


@pytest.mark.parametrize('given', [1, 2, 3])
@pytest.mark.parametrize('error', [KeyboardInterrupt, PermissionError])
def test_what_fails_while_names_are_given_loses_nothing(monkeypatch, tmp_path, given, error):
    prefix = str(tmp_path / 'model')
    trained_on_pages(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    second = trained_on_pages(3)
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

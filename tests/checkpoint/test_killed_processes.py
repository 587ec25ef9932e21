"""Checkpoints by processes that are killed or race, and mixes of two checkpoints."""

import contextlib
import fcntl
import itertools
import json
import os
import random
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from checkpoints import (
    bound,
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


@pytest.mark.process
@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_old_checkpoint_or_the_new(tmp_path):
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
    modules, whole = (trained_on_pages(1), trained_on_pages(3)), set()
    for module in modules:
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
        whole.add(fingerprint(prefix, 1))
    files = set(content(os.path.dirname(prefix)))
    for _ in range(8):
        pids = [fork(save_slowly, module, prefix) for module in modules]
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
        assert loaded(prefix, 1, whole)
        assert set(content(os.path.dirname(prefix))) == files


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_that_save_the_same_epoch_leave_one_whole_checkpoint(tmp_path):
    in_a_process(racing, tmp_path / 'model')


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
    load(prefix, 2, False)
    with pytest.warns(UserWarning, match=r'model-symbol\.json is not .*model-0001\.svrg'):
        assert load(prefix, 1, False).symbol.tojson() == network


def test_a_network_is_loaded_though_its_operators_have_other_names(tmp_path):
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


def test_a_symbol_that_another_version_of_mxnet_has_written_is_loaded(tmp_path):
    prefix, file = str(tmp_path / 'model'), tmp_path / 'model-symbol.json'
    trained_on_pages().save_checkpoint(prefix, 1)
    text = file.read_text(encoding='utf-8')
    graph = json.loads(text)
    graph['attrs']['mxnet_version'][1] -= 1
    file.write_text(json.dumps(graph), encoding='utf-8')
    assert file.read_text(encoding='utf-8') != text
    load(prefix, 1, False)


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


@pytest.mark.parametrize('write', [os.replace, shutil.copy])
def test_parameters_saved_anew_while_they_are_loaded_are_refused(monkeypatch, tmp_path, write):
    prefix = str(tmp_path / 'model')
    trained_on_pages(1).save_checkpoint(prefix, 1)
    trained_on_pages(3).save_checkpoint(prefix, 2)

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


def test_a_directory_that_somebody_has_locked_can_be_used(tmp_path):
    prefix, module = str(tmp_path / 'model'), trained_on_pages()
    handle = os.open(str(tmp_path), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        module.save_checkpoint(prefix, 1)
        load(prefix, 1, False)
    finally:
        os.close(handle)


def test_states_that_were_left_are_not_taken_for_others(tmp_path):
    prefix = str(tmp_path / 'model')
    trained_on_pages(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    shutil.copy(prefix + '-0001.states', prefix + '-0001.states.left')
    module = bound(load(prefix, 1), Problem('softmax', rows=37, features=900))
    trained_on_pages(3).save_checkpoint(prefix, 1, save_optimizer_states=True)
    with pytest.raises(ValueError, match=r'model-0001\.states is not the file'):
        module.init_optimizer()


def test_states_saved_anew_after_loading_are_refused(tmp_path):
    """They are read when the optimizer is installed, and must be those of the weights."""
    prefix = str(tmp_path / 'model')
    trained_on_pages(1).save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = bound(load(prefix, 1), Problem('softmax', rows=37, features=900))
    trained_on_pages(3).save_checkpoint(prefix, 1, save_optimizer_states=True)
    with pytest.raises(ValueError, match=r'model-0001\.states is not the file'):
        module.init_optimizer()

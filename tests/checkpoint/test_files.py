"""Files of both front ends: damaged ones, full disks, failures, and no pickles."""

import contextlib
import json
import os
import pickle
import stat
from pathlib import Path
from unittest import mock

import mxnet as mx
import numpy as np
import pytest

from blocks import Blocks
from checkpoints import bits, bound, content, load, train
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.checkpoint.files import read, write

PROBLEM = Problem('softmax', rows=37)  # that of the fixture `saved`


@pytest.mark.parametrize('content', [b'', b'this is another file' * 20, pickle.dumps([1, 2])])
def test_a_file_of_something_else_is_named(saved, content):
    Path(saved + '-0003.svrg').write_bytes(content)
    with pytest.raises(ValueError, match='model-0003.svrg is damaged, or no file of SVRGModule'):
        load(saved, 3)
    write(saved + '-0003.svrg', 'SVRGTrainer', {})
    with pytest.raises(ValueError, match='model-0003.svrg must be saved by SVRGModule in format '
                                         '1, and was by SVRGTrainer in format 1'):
        load(saved, 3)
    load(saved, 2)


@pytest.mark.parametrize('missing', [False, True])
@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
def test_other_files_are_not_read(saved, kind, missing):
    expected, name = load(saved, 3), Path('%s-%s' % (saved, kind))
    name.unlink() if missing else name.write_bytes(b'of something else')
    found = load(saved, 3)
    assert found.symbol.tojson() == expected.symbol.tojson()
    for module in (found, expected):
        train(PROBLEM, module, 3, 4)
    assert bits(found) == bits(expected)


@pytest.mark.parametrize('kind', ['0003.params', '0003.states', 'symbol.json'])
def test_without_ours_the_files_of_plain_module_are_read_and_it_is_told(saved, kind):
    expected = bits(bound(load(saved, 3), PROBLEM))
    os.remove(saved + '-0003.svrg')
    with pytest.warns(UserWarning, match='model-0003.svrg is not there: .*model-0003.params is '
                                         'loaded as the checkpoint of a plain Module, '
                                         'without settings'):
        module = load(saved, 3, tol=1.)
    assert (module.update_freq, module.tol, bits(bound(module, PROBLEM))) == (1, 1., expected)
    Path('%s-%s' % (saved, kind)).unlink()
    with pytest.raises(FileNotFoundError, match='model-%s' % kind):
        load(saved, 3)


def checkpoint(folder):
    train(PROBLEM, PROBLEM.module(2), 0, 1).save_checkpoint(str(folder / 'model'), 1, True)
    return folder / 'model-0001.svrg', 'SVRGModule'


def states(folder):
    trainer = Blocks('perceptron').trainer(Blocks('perceptron').net())
    trainer.update_full_grads(Blocks('perceptron').loader())
    trainer.save_states(str(folder / 'states'))
    return folder / 'states', 'SVRGTrainer'


def lacking(content):
    """Yield contents that lack one key, at any depth."""
    for key, value in content.items():
        yield key, {name: part for name, part in content.items() if name != key}
        if isinstance(value, dict) and key not in (
                'weights', 'auxiliary', 'settings', 'numbers', 'share'):
            for name, part in lacking(value):
                yield name, {**content, key: part}


def use(make, name):
    """Load a file and use all that it has."""
    if make is checkpoint:
        train(PROBLEM, load(str(name)[:-len('-0001.svrg')], 1), 1, 2)
    else:
        trainer = Blocks('perceptron').trainer(Blocks('perceptron').net())
        trainer.load_states(str(name))


@pytest.mark.parametrize('make', [checkpoint, states])
def test_a_content_without_a_key_is_refused_with_the_files_name(tmp_path, make):
    name, saved_by = make(tmp_path)
    whole, refused = read(name, saved_by), 0
    for key, rest in lacking(whole):
        write(name, saved_by, rest)
        try:
            use(make, name)
        except ValueError as error:
            assert str(error).startswith(str(name)), key
            refused += 1
    assert refused > 12


@pytest.mark.parametrize('make', [checkpoint, states])
def test_a_changed_bit_or_a_lost_end_is_refused_or_changes_nothing(tmp_path, make, step=53):
    name, saved_by = make(tmp_path)
    whole, expected, refused = name.read_bytes(), pickle.dumps(read(name, saved_by)), 0
    for i in range(0, len(whole), step):
        for changed in (whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1:], whole[:i]):
            name.write_bytes(changed)
            try:
                assert pickle.dumps(read(name, saved_by)) == expected
            except ValueError as error:
                assert str(error).startswith(str(name))
                refused += 1
    assert refused > 1.5 * len(whole) / step


class CreatesAFile:
    def __init__(self, name):
        self.name = str(name)

    def __reduce__(self):
        return open, (self.name, 'w')


@pytest.mark.filterwarnings('ignore:.*model-0003.svrg is not there')
@pytest.mark.parametrize('svrg', [True, False])
def test_states_are_unpickled_only_where_plain_module_has_saved_them(saved, tmp_path, svrg):
    trap = tmp_path / 'trap'
    Path(saved + '-0003.states').write_bytes(pickle.dumps(CreatesAFile(trap)))
    if not svrg:
        os.remove(saved + '-0003.svrg')
    train(PROBLEM, load(saved, 3, load_optimizer_states=False), 3, 4)
    module = load(saved, 3)
    assert not trap.exists()
    with contextlib.nullcontext() if svrg else pytest.raises(AttributeError, match='keys'):
        train(PROBLEM, module, 3, 4)
    assert trap.exists() is not svrg


@pytest.mark.parametrize('make', [checkpoint, states])
def test_files_hold_no_pickles_and_read_none(tmp_path, make):
    name, saved_by = make(tmp_path)
    with np.load(str(name), allow_pickle=False) as file:
        arrays = dict(file)  # it refuses arrays of objects
    np.savez(str(name) + '.npz', **{**arrays, '0': np.array([CreatesAFile(tmp_path / 'trap')])})
    with pytest.raises(ValueError, match='allow_pickle=False'):
        read(str(name) + '.npz', saved_by)
    assert not (tmp_path / 'trap').exists()


@pytest.mark.parametrize('removes', [False, True])
def test_casts_of_mixed_precision_stay_unless_they_are_removed(prefix, removes):
    data = mx.sym.amp_cast(mx.sym.Variable('data'), dtype='float32')
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2), name='softmax')
    module = SVRGModule(symbol)
    module.bind([('data', (5, 4))], [('softmax_label', (5,))])
    module.init_params()
    module.save_checkpoint(prefix, 1, remove_amp_cast=removes)
    of_file = SVRGModule.load(prefix, 1).symbol, mx.sym.load(prefix + '-symbol.json')
    assert ['amp_cast' in each.tojson(remove_amp_cast=False) for each in of_file] == [
        not removes] * 2


@pytest.mark.parametrize('operator, is_nested', [
    ('_Native', False), ('_NDArray', True), ('_backward__Native', False)])
def test_a_network_that_runs_code_is_refused_before_it_does(saved, operator, is_nested):
    graph = {'nodes': [{'op': 'null', 'name': 'data', 'inputs': []},
                       {'op': operator, 'name': 'x', 'attrs': {'info': '0x41414141'},
                        'inputs': [[0, 0, 0]]}],
             'arg_nodes': [0], 'node_row_ptr': [0, 1, 2], 'heads': [[1, 0, 0]]}
    if is_nested:
        node = {'op': '_foreach', 'name': 'loop', 'inputs': [[0, 0, 0]], 'subgraphs': [graph],
                'attrs': {'num_args': '2', 'num_outputs': '1', 'num_out_data': '1',
                          'in_state_locs': '()', 'in_data_locs': '(0)', 'remain_locs': '()'}}
        graph = {**graph, 'nodes': [graph['nodes'][0], node]}
    forged = {**read(saved + '-0003.svrg', 'SVRGModule'), 'symbol': json.dumps(graph)}
    write(saved + '-0003.svrg', 'SVRGModule', forged)
    with pytest.raises(ValueError, match='model-0003.svrg must have no operator that calls a '
                                         "function by its address, and has '\\w*_N"):
        load(saved, 3)  # or MXNet jumps to the address, and crashes


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
    with pytest.raises(TypeError, match="to a 'set' object"):
        module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    assert not list(Path(prefix).parent.iterdir())
    module.save_checkpoint(prefix, 1)


@pytest.mark.parametrize('make, path, error, says', [
    (None, 'missing/model-0001.svrg', FileNotFoundError, r"No such.*missing/model-0001.svrg'$"),
    *((make, 'model-0001.svrg', FileExistsError, 'model-0001.svrg')
      for make in (Path.mkdir, lambda path: path.symlink_to(os.devnull)))])
def test_a_place_where_no_file_can_be_is_named_and_left_alone(tmp_path, make, path, error, says):
    if make:
        make(tmp_path / path)
    before = sorted(tmp_path.rglob('*'))
    with pytest.raises(error, match=says):
        checkpoint((tmp_path / path).parent)
    assert sorted(tmp_path.rglob('*')) == before
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize('owner, fails, error', [
    (SVRGModule, 'get_params', OSError), (np.lib.format, 'write_array', OSError),
    (os, 'fsync', KeyboardInterrupt), (os, 'replace', KeyboardInterrupt)])
def test_a_failure_while_saving_leaves_the_files_as_they_were(monkeypatch, saved, owner, fails,
                                                              error):
    module, before = load(saved, 2), content(os.path.dirname(saved))
    with monkeypatch.context() as patch, pytest.raises(error, match='at once'):
        patch.setattr(owner, fails, mock.Mock(side_effect=error('at once')))
        train(PROBLEM, module, 2, 3, prefix=saved)
    assert content(os.path.dirname(saved)) == before


def test_modes_are_those_of_a_new_file_or_of_the_one_before(saved):
    module, mask = train(PROBLEM, load(saved, 3), 3, 4), os.umask(0o027)
    try:
        os.chmod(saved + '-0003.svrg', 0o604)
        for epoch in (3, 9):
            module.save_checkpoint(saved, epoch)
    finally:
        assert os.umask(mask) == 0o027
    modes = [os.stat('%s-%04d.svrg' % (saved, epoch)).st_mode & 0o777 for epoch in (3, 9)]
    assert modes == [0o604, 0o640]


def test_symbolic_links_are_written_through(saved, tmp_path):
    module = train(PROBLEM, load(saved, 3), 3, 4)
    (tmp_path / 'elsewhere').mkdir()
    link, target = Path(saved + '-0003.svrg'), tmp_path / 'elsewhere' / 'target'
    link.rename(target)
    link.symlink_to(target)
    module.save_checkpoint(saved, 3, save_optimizer_states=True)
    assert link.is_symlink() and list((tmp_path / 'elsewhere').iterdir()) == [target]
    assert bits(bound(load(saved, 3), PROBLEM)) == bits(module)

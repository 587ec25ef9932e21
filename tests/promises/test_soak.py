"""Long runs leave nothing over: no memory, arrays, threads, files or processes.

Each runs in a process of its own; `make soak` runs them at full length.
"""

import ctypes
import gc
import json
import logging
import warnings

import mxnet as mx
import psutil
import pytest

from problems import TWO_DEVICES, Problem
from processes import in_a_process
from svrg_optimization import SVRGModule

# An NDArray of 16 numbers takes 700 bytes; so a process that keeps one in each cycle grows by
# more than this, over as many cycles as outweigh the noise.
BYTES_OF_A_CYCLE = 400
NOISE = 200_000
FILES = {'checkpoints': ['model-0001.params', 'model-0001.states', 'model-0001.svrg',
                         'model-symbol.json']}
SETTINGS = {'learning_rate': 0.01, 'momentum': 0.5, 'wd': 0.01}
PROBLEM = Problem('perceptron', rows=37)


def held():
    mx.nd.waitall()
    gc.collect()
    # Memory that is free, but has not gone back to the system, differs from run to run.
    ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    return {'resident': process.memory_info().rss,
            'arrays': sum(isinstance(thing, mx.nd.NDArray) for thing in gc.get_objects()),
            'files': process.num_fds(), 'processes': len(process.children(recursive=True)),
            'threads': process.num_threads()}


def epochs(cycles, end_cycle, **kwargs):
    PROBLEM.fit(PROBLEM.module(10, **kwargs), cycles, eval_metric='acc', optimizer_params=SETTINGS,
                epoch_end_callback=lambda *_: end_cycle())


def devices(cycles, end_cycle):
    epochs(cycles, end_cycle, context=TWO_DEVICES)


def bindings(cycles, end_cycle):
    """Bind, step, reshape to other numbers of rows, step and bind again."""
    module = PROBLEM.module(context=TWO_DEVICES)
    for number in range(cycles):
        for rows in (10, 6 + number % 3):
            train_data = PROBLEM.iterator(rows)
            shapes = train_data.provide_data, train_data.provide_label
            if rows == 10:
                module.bind(*shapes, force_rebind=True)
                module.init_params(arg_params=PROBLEM.arg_params(), force_init=True)
                module.init_optimizer(optimizer_params=SETTINGS, force_init=True)
            else:
                module.reshape(*shapes)
            module.update_full_grads(train_data)
            train_data.reset()
            module.forward_backward(next(train_data))
            module.update()
        end_cycle()


def checkpoints(cycles, end_cycle):
    """Save a checkpoint, load it into a new module, train that, and so on."""
    module = PROBLEM.module()
    for _ in range(cycles):
        module.fit(PROBLEM.iterator(), eval_metric=[], num_epoch=1, optimizer_params=SETTINGS)
        module.save_checkpoint('model', 1, save_optimizer_states=True)
        module = SVRGModule.load('model', 1, load_optimizer_states=True, label_names=('label',))
        end_cycle()


def nothing(cycles, end_cycle):
    for _ in range(cycles):
        end_cycle()


def run(name, cycles, leak):
    """Run a scenario; print as JSON what the process holds after each tenth of the cycles."""
    logging.disable()
    warnings.simplefilter('ignore')
    ended, kept, records = [0], [], []

    def end_cycle():
        ended[0] += 1
        if leak:
            kept.append(mx.nd.zeros(16))
        if ended[0] % (int(cycles) // 10) == 0:
            records.append(held())

    globals()[name](int(cycles), end_cycle)
    print(json.dumps(records))


def scenario(name, short, full):
    return [(name, short), pytest.param(name, full, marks=pytest.mark.soak)]


def records_of(folder, monkeypatch, name, cycles, leak=''):
    """Run a scenario in a process of its own and this folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv('TMPDIR', str(folder))
    return json.loads(in_a_process(run, name, cycles, leak))


def growth(records):
    """Tell what came on top after the first tenth, in which caches and pools fill."""
    return {what: records[-1][what] - first for what, first in records[0].items()}


def bound(cycles):
    return NOISE + BYTES_OF_A_CYCLE * cycles * 0.9


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name, cycles', [
    *scenario('epochs', 100, 10_000), *scenario('devices', 50, 5_000),
    *scenario('bindings', 20, 500), *scenario('checkpoints', 10, 500)])
def test_nothing_is_left_over(tmp_path, monkeypatch, record_property, name, cycles):
    records = records_of(tmp_path, monkeypatch, name, cycles)
    record_property('records', records)
    print(name, cycles, [record['resident'] for record in records])
    more = growth(records)
    # Short runs are not out of the noise.
    assert more.pop('resident') < max(bound(cycles), 2_000_000 * (cycles < 500))
    assert more == {'arrays': 0, 'files': 0, 'threads': 0, 'processes': 0}
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES.get(name, [])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('leak', ['', 'leak'])
def test_a_small_array_in_each_cycle_would_be_noticed(tmp_path, monkeypatch, leak):
    more = growth(records_of(tmp_path, monkeypatch, 'nothing', 10_000, leak))
    assert (more['resident'] > bound(10_000)) == bool(leak)
    assert more['arrays'] == 9_000 * bool(leak)

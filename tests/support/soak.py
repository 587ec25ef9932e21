"""Run one scenario for many cycles, and print as JSON what it leaves over.

``python tests/support/soak.py epochs 10000`` trains for so many epochs; --module plain does the
same with MXNet's Module, to see whose a leak is, and --leak keeps a small array in each cycle, to
see that it is noticed.
"""

import argparse
import ctypes
import gc
import json
import logging
import sys
import warnings
from pathlib import Path

import mxnet as mx
import psutil

from problems import Problem
from svrg_optimization import SVRGModule

DEVICES = [mx.cpu(0), mx.cpu(1)]
SETTINGS = {'learning_rate': 0.01, 'momentum': 0.5, 'wd': 0.01}
EPOCHS_OF_A_SNAPSHOT = 10


class Recorder:
    """Note what the process holds after each tenth of the cycles."""

    def __init__(self, cycles, leak):
        self.cycles, self.leak, self.kept = cycles, leak, []
        self.records = []
        self.finished = 0

    def cycle(self):
        self.finished += 1
        if self.leak:
            self.kept.append(mx.nd.zeros(16))
        if self.finished % (self.cycles // 10) == 0:
            self.records.append(held())


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


def made(kind, problem, **kwargs):
    if kind == 'plain':
        return mx.mod.Module(problem.symbol, label_names=('label',),
                             context=kwargs.get('context', mx.cpu()))
    return problem.module(**kwargs)


def epochs(kind, cycles, recorder, context=DEVICES[:1], **kwargs):
    problem = Problem('perceptron', rows=37)
    module = made(kind, problem, update_freq=EPOCHS_OF_A_SNAPSHOT, context=context, **kwargs)
    module.fit(problem.iterator(), eval_metric='acc', num_epoch=cycles, kvstore='local',
               arg_params=problem.arg_params(), optimizer_params=SETTINGS,
               epoch_end_callback=lambda *_: recorder.cycle())


def held_batches(kind, cycles, recorder):
    kwargs = {'store_snapshot_grads': True} if kind == 'svrg' else {}
    epochs(kind, cycles, recorder, **kwargs)


def devices(kind, cycles, recorder):
    epochs(kind, cycles, recorder, context=DEVICES)


def step(kind, module, problem, rows):
    train_data = problem.iterator(rows)
    if kind == 'svrg':
        module.update_full_grads(train_data)
        train_data.reset()
    module.forward_backward(next(train_data))
    module.update()


def bindings(kind, cycles, recorder):
    """Bind, step, reshape to other numbers of rows, step and bind again."""
    problem = Problem('perceptron', rows=37)
    module = made(kind, problem, context=DEVICES)
    for number in range(cycles):
        for rows in (10, 6 + number % 3):
            shapes = problem.iterator(rows).provide_data, problem.iterator(rows).provide_label
            if rows == 10:
                module.bind(*shapes, force_rebind=True)
                module.init_params(arg_params=problem.arg_params(), force_init=True)
                module.init_optimizer(optimizer_params=SETTINGS, force_init=True)
            else:
                module.reshape(*shapes)
            step(kind, module, problem, rows)
        recorder.cycle()


def checkpoints(kind, cycles, recorder):
    """Save a checkpoint, load it into a new module, train that, and so on."""
    problem = Problem('perceptron', rows=37)
    without_leak_of_mxnet(problem.symbol)
    cls = SVRGModule if kind == 'svrg' else mx.mod.Module
    module = made(kind, problem)
    for _ in range(cycles):
        module.fit(problem.iterator(), eval_metric=[], num_epoch=1, optimizer_params=SETTINGS)
        module.save_checkpoint('model', 1, save_optimizer_states=True)
        module = cls.load('model', 1, load_optimizer_states=True, label_names=('label',))
        recorder.cycle()


def without_leak_of_mxnet(symbol):
    """Write no symbol any more: each time, MXNet loses three times its JSON."""
    json_of_symbol = symbol.tojson()
    mx.sym.Symbol.tojson = lambda *_, **__: json_of_symbol
    mx.sym.Symbol.save = lambda _, path, **__: Path(path).write_text(json_of_symbol, 'utf-8')


def nothing(_, cycles, recorder):
    for _ in range(cycles):
        recorder.cycle()


SCENARIOS = {function.__name__: function for function in (
    epochs, held_batches, devices, bindings, checkpoints, nothing)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('scenario', choices=SCENARIOS)
    parser.add_argument('cycles', type=int)
    parser.add_argument('--module', choices=['svrg', 'plain'], default='svrg')
    parser.add_argument('--leak', action='store_true')
    args = parser.parse_args()
    logging.disable()
    warnings.simplefilter('ignore')
    recorder = Recorder(args.cycles, args.leak)
    SCENARIOS[args.scenario](args.module, args.cycles, recorder)
    json.dump(recorder.records, sys.stdout)


if __name__ == '__main__':
    main()

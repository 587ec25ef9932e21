"""Run one scenario for many cycles, and print as JSON what it leaves over.

``python tests/support/soak.py epochs 10000`` trains for so many epochs; --leak keeps a small
array in each cycle, to see that it is noticed.
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
    epochs(cycles, end_cycle, context=DEVICES)


def bindings(cycles, end_cycle):
    """Bind, step, reshape to other numbers of rows, step and bind again."""
    module = PROBLEM.module(context=DEVICES)
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
    # Write no symbol any more: each time, MXNet loses three times its JSON.
    json_of_symbol = PROBLEM.symbol.tojson()
    mx.sym.Symbol.tojson = lambda *_, **__: json_of_symbol
    mx.sym.Symbol.save = lambda _, path, **__: Path(path).write_text(json_of_symbol, 'utf-8')
    module = PROBLEM.module()
    for _ in range(cycles):
        module.fit(PROBLEM.iterator(), eval_metric=[], num_epoch=1, optimizer_params=SETTINGS)
        module.save_checkpoint('model', 1, save_optimizer_states=True)
        module = SVRGModule.load('model', 1, load_optimizer_states=True, label_names=('label',))
        end_cycle()


def nothing(cycles, end_cycle):
    for _ in range(cycles):
        end_cycle()


def main():
    """Note what the process holds after each tenth of the cycles."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('scenario', choices=[
        'epochs', 'held_batches', 'devices', 'bindings', 'checkpoints', 'nothing'])
    parser.add_argument('cycles', type=int)
    parser.add_argument('--leak', action='store_true')
    args = parser.parse_args()
    logging.disable()
    warnings.simplefilter('ignore')
    ended, kept, records = [0], [], []

    def end_cycle():
        ended[0] += 1
        if args.leak:
            kept.append(mx.nd.zeros(16))
        if ended[0] % (args.cycles // 10) == 0:
            records.append(held())

    globals()[args.scenario](args.cycles, end_cycle)
    json.dump(records, sys.stdout)


if __name__ == '__main__':
    main()

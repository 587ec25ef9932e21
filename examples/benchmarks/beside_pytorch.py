"""How long does an epoch of SVRG take beside the loop that people copy, in PyTorch?

Times epochs with a snapshot each (update_freq=1): through `fit` of SVRGModule and
through the loop of pytorch_loop.py. Both have the same rows, batches, steps and initial
weights, and no metric. MXNet reads the settings of its
threads when it is imported, so each setting has a process of its own. PyTorch has
another process, with a thread for each core. The processes take turns in rounds, and
each ratio is of two times of one round. Before the timing each process must arrive at
PyTorch's weights after one epoch. The script needs torch: pip install -e '.[benchmarks]'.
"""

import contextlib
import os
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import common
import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule

# Network, rows, and epochs of a turn.
MODELS = {'softmax 784-10': (common.softmax, 12800, 10),
          'MLP 784-512-256-10': (common.perceptron, 6400, 2),
          'LeNet': (common.lenet, 1280, 1)}
BATCH_SIZE, RATE, TOLERANCE = 128, 0.02, 1e-4
SECONDS_TO_REST = 0.2  # threads may wait for work in a loop for a while


def settings_of(threads):
    """Return the environment variables of each setting; MXNet's defaults are the first."""
    threads = {'OMP_NUM_THREADS': str(threads)}
    return [{}, threads, {'MXNET_ENGINE_TYPE': 'NaiveEngine', **threads}]


class Process:
    """A process that trains when it is asked to; it receives the arguments and its pipe.

    Parameters
    ----------
    script : str
        Script beside this one.
    settings : dict of str to str
        Environment variables; all others that set threads are taken away.
    *arguments : object
        Arguments of the script after the number of the pipe.
    """

    def __init__(self, script, settings, *arguments):
        self._pipe, its_pipe = Pipe()
        environment = {name: value for name, value in os.environ.items()
                       if name not in common.SETTINGS}
        with its_pipe:
            self._popen = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(script)), str(its_pipe.fileno()),
                 *map(str, arguments)], pass_fds=[its_pipe.fileno()],
                env={**environment, 'MXNET_SUBGRAPH_VERBOSE': '0', **settings})
        self.version = self._pipe.recv()

    def ask(self, *what):
        """Send an order, and wait for the answer."""
        self._pipe.send(what)
        return self._pipe.recv()

    def end(self):
        """End the process."""
        self._pipe.send(None)
        self._popen.wait()


class Training:
    """A training of one network by SVRGModule."""

    def __init__(self, name, weights, features, labels, batch_size, rate):
        symbol, _ = MODELS[name][0]()
        self._weights = dict(zip(parameters_of(symbol), map(mx.nd.array, weights)))
        self._train_data = mx.io.NDArrayIter(features, labels, batch_size)
        self._number_of = {features[i * batch_size].tobytes(): i
                           for i in range(len(features) // batch_size)}
        self._rate = {'learning_rate': rate}
        self._module = SVRGModule(symbol, update_freq=1)

    def _fit(self, epochs, **given):
        self._module.fit(self._train_data, eval_metric=[], num_epoch=epochs,
                         optimizer_params=self._rate, **given)

    def check(self):
        """Train the first epoch; return the numbers of its batches in order, and the weights."""
        order = []

        def note(param):
            first_row = param.locals['data_batch'].data[0][0].asnumpy()
            order.append(self._number_of[first_row.tobytes()])

        self._fit(1, arg_params=self._weights, initializer=None, batch_end_callback=note)
        weights, _ = self._module.get_params()
        return order, [weights[name].asnumpy() for name in self._weights]

    def time(self, epochs):
        """Return the seconds of an epoch."""
        return common.seconds_of(lambda: self._fit(epochs)) / epochs


def parameters_of(symbol):
    return [name for name in symbol.list_arguments() if name not in ('data', 'softmax_label')]


def answer(pipe):
    """Answer what the process that measures asks for."""
    common.quiet()
    pipe.send('mxnet %s' % mx.__version__)
    training = None
    for what, *given in iter(pipe.recv, None):
        if what == 'begin':
            training = Training(*given)
            pipe.send(None)
        else:
            pipe.send(getattr(training, what)(*given))


def begin_of(name, batches=None):
    """Return what a training of a network begins with, on random rows and labels."""
    network, rows, _ = MODELS[name]
    rows = min(rows, (batches or rows) * BATCH_SIZE)
    symbol, shape = network()
    shapes, _, _ = symbol.infer_shape(data=(BATCH_SIZE, *shape))
    shape_of = dict(zip(symbol.list_arguments(), shapes))
    rng = np.random.RandomState(0)
    weights = [rng.normal(size=shape_of[name]) / np.sqrt(np.prod(shape_of[name][1:]))
               if name.endswith('weight') else np.zeros(shape_of[name])
               for name in parameters_of(symbol)]
    return (name, [weight.astype(np.float32) for weight in weights],
            rng.normal(size=(rows, *shape)).astype(np.float32),
            rng.randint(10, size=rows).astype(np.float32), BATCH_SIZE, RATE)


def check(begin, pytorch, process):
    """Assert that a training by SVRGModule comes to the weights of PyTorch in one epoch."""
    order, weights = process.ask('check')
    pytorch.ask('begin', *begin)
    expected = pytorch.ask('check', order)
    moved = max(np.abs(after - before).max() for after, before in zip(expected, begin[1]))
    off = max(np.abs(of_ours - of_theirs).max() for of_ours, of_theirs in zip(weights, expected))
    assert sorted(order) == list(range(len(begin[2]) // BATCH_SIZE))
    assert off <= TOLERANCE < moved / 10, (
        'the weights of %s are %g from those of PyTorch, which moved %g' % (
            begin[0], off, moved))


def measure(name, pytorch, processes, args):
    """Return the seconds of an epoch in each round, of PyTorch and of each setting."""
    begin, epochs = begin_of(name, args.batches), MODELS[name][2]
    for process in processes:
        process.ask('begin', *begin)
        check(begin, pytorch, process)
    turns = {'PyTorch': lambda: pytorch.ask('time', epochs)}
    for i, process in enumerate(processes):
        turns[i] = lambda process=process: process.ask('time', epochs)
    seconds = {turn: [] for turn in turns}
    for _ in range(args.rounds):
        for turn, seconds_of in turns.items():
            time.sleep(SECONDS_TO_REST)
            seconds[turn].append(seconds_of())
    return {turn: np.array(each) for turn, each in seconds.items()}


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--batches', type=int, help='at most, of an epoch (default: %s)' % (
        ', '.join('%d of %s' % (rows // BATCH_SIZE, name)
                  for name, (_, rows, _) in MODELS.items())))
    parser.add_argument('--threads', type=int, default=common.CORES,
                        help='of PyTorch, and of MXNet if not its defaults (default: %(default)s)')
    args = parser.parse_args()
    rows, all_settings = [], settings_of(args.threads)
    with contextlib.ExitStack() as stack:
        processes = []
        for script, settings, *arguments in [('pytorch_loop.py', {}, args.threads)] + [
                ('beside_pytorch.py', settings, 'answer') for settings in all_settings]:
            processes.append(Process(script, settings, *arguments))
            stack.callback(processes[-1].end)
        pytorch, *processes = processes
        for name in args.models:
            seconds = measure(name, pytorch, processes, args)
            ratios = [seconds[i] / seconds['PyTorch'] for i in range(len(processes))]
            rows.append([name, common.median(1e3 * seconds['PyTorch'], '%.1f'),
                         *map(common.median, ratios), common.spread(seconds['PyTorch'], *ratios)])
            print(*rows[-1], sep=' | ', flush=True)
    named = [' '.join('%s=%s' % item for item in settings.items()) for settings in all_settings]
    common.write(args.output, 'beside_pytorch',
                 "SVRGModule's epoch over that of a plain loop in PyTorch, by the settings of "
                 'MXNet. %s with %d threads, batches of %d, update_freq=1; median of %d '
                 'interleaved rounds; spread: the widest range over its median. After the first '
                 'epoch the weights agree to %g.' % (
                     pytorch.version, args.threads, BATCH_SIZE, args.rounds, TOLERANCE),
                 ['model', 'PyTorch, ms an epoch', "MXNet's defaults", *named[1:],
                  common.SPREAD], rows)


if __name__ == '__main__':
    if sys.argv[2:] == ['answer']:
        answer(Connection(int(sys.argv[1])))
    else:
        main()

"""What the benchmarks share: networks, interleaved timing, and how results are written."""

import argparse
import logging
import os
import platform
import time
import warnings
from pathlib import Path

import matplotlib
import mxnet as mx
import numpy as np
from threadpoolctl import threadpool_info

matplotlib.use('Agg')
from matplotlib import pyplot  # noqa: E402

# One color for each method in all pictures: docs/figures/common.py has the same.
COLORS = {'SVRG': '#0072b2', 'SGD': '#d55e00', 'α-SVRG': '#009e73'}
TITLE = {'fontsize': 11}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
SPREAD = 'spread, %'  # in the last column of a table
KERNELS = os.environ.get('DNNL_MAX_CPU_ISA')  # others than those of the processor
SETTINGS = ('MXNET_ENGINE_TYPE', 'MXNET_CPU_WORKER_NTHREADS', 'OMP_NUM_THREADS', 'OMP_WAIT_POLICY',
            'OPENBLAS_CORETYPE', 'DNNL_MAX_CPU_ISA')
RESULTS = Path(__file__).parent.parent.parent / 'docs' / 'benchmarks'


def linear(features=90):
    data, label = mx.sym.Variable('data'), mx.sym.Variable('softmax_label')
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1, name='fc'),
                                         label), (features,)


def softmax(features=784, classes=10):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=classes, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax'), (features,)


def perceptron(features=784, hidden=(512, 256), classes=10):
    layer = mx.sym.Variable('data')
    for i, units in enumerate(hidden):
        layer = mx.sym.FullyConnected(layer, num_hidden=units, name='hidden%d' % i)
        layer = mx.sym.Activation(layer, act_type='relu')
    scores = mx.sym.FullyConnected(layer, num_hidden=classes, name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax'), (features,)


def lenet():
    layer = mx.sym.Variable('data')
    for i, filters in enumerate((20, 50)):
        layer = mx.sym.Convolution(layer, kernel=(5, 5), num_filter=filters, name='conv%d' % i)
        layer = mx.sym.Activation(layer, act_type='tanh')
        layer = mx.sym.Pooling(layer, pool_type='max', kernel=(2, 2), stride=(2, 2))
    layer = mx.sym.FullyConnected(mx.sym.flatten(layer), num_hidden=500, name='hidden')
    scores = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type='tanh'), num_hidden=10,
                                   name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax'), (1, 28, 28)


def many_small(layers=80, channels=8):
    """160 small parameters, in as many convolutions as a thin ResNet has layers."""
    layer = mx.sym.Variable('data')
    for i in range(layers):
        layer = mx.sym.Convolution(layer, kernel=(3, 3), pad=(1, 1), num_filter=channels,
                                   name='conv%d' % i)
    return mx.sym.SoftmaxOutput(mx.sym.flatten(mx.sym.Pooling(
        layer, global_pool=True, kernel=(4, 4), pool_type='avg')), name='softmax'), (3, 4, 4)


def iterator(shape, rows, batch_size, seed=0, **kwargs):
    rng = np.random.RandomState(seed)
    return mx.io.NDArrayIter(rng.normal(size=(rows, *shape)).astype(np.float32),
                             rng.randint(8, size=rows), batch_size, **kwargs)


def bytes_of_weights(symbol, shape, batch_size):
    """Count the bytes of a network's parameters."""
    shapes, _, _ = symbol.infer_shape(data=(batch_size, *shape))
    inputs = ('data', 'softmax_label')
    return sum(4 * int(np.prod(size)) for name, size in zip(symbol.list_arguments(), shapes)
               if name not in inputs)


def seconds_of(function):
    """Time one call, with all that it has asked MXNet for."""
    mx.nd.waitall()
    tic = time.perf_counter()
    function()
    mx.nd.waitall()
    return time.perf_counter() - tic


def seconds_of_rounds(functions, rounds):
    """Call functions in interleaved rounds; return the times of each.

    Parameters
    ----------
    functions : dict of object to callable
    rounds : int

    Returns
    -------
    dict of object to numpy.ndarray
    """
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            seconds[name].append(seconds_of(function))
    return {name: np.array(each) for name, each in seconds.items()}


def median(values, form='%.2f'):
    """Return the median of values, as a cell of a table."""
    return form % np.median(values)


def spread(*measured):
    """Return the widest range over its median of some measurements in percent, as a cell."""
    return '%.0f' % max(100 * np.ptp(values) / np.median(values) for values in measured)


def times(of_levels, otherwise='not reached'):
    """Return the cells of the times to some levels, and the range of those to the last level.

    Times are infinite where a run has not come to a level.
    """
    cells = [median(each) if max(each) < np.inf else otherwise for each in of_levels]
    last = of_levels[-1]
    return cells + (['%.2f' % min(last), '%.2f' % max(last)] if max(last) < np.inf else ['', ''])


def parser(description, rounds=5):
    """Return an argument parser for a benchmark; `rounds` is None if there are none."""
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds:
        made.add_argument('--rounds', type=int, default=rounds,
                          help='of which the tables have the median (default: %(default)s)')
    made.add_argument('--output', type=Path, default=RESULTS,
                      help='directory for the table and the picture')
    return made


def quiet():
    """Silence what the trained modules log."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings('ignore', 'Parameters already initialized')
    warnings.filterwarnings('ignore', 'Optimizer created manually')


def processor():
    """Return the name of the processor, where Linux tells it, and its widest vectors."""
    try:
        lines = Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    except OSError:
        return platform.machine()
    told = dict(reversed([[part.strip() for part in line.split(':', 1)]
                          for line in lines if ':' in line]))
    vectors = [name for name in ('avx512f', 'avx2', 'avx') if name in told.get('flags', '').split()]
    return ' '.join([told.get('model name', platform.machine()), *vectors[:1]])


def blas():
    """Return the BLAS libraries of NumPy, SciPy and MXNet, and the threads of each."""
    owners = {'numpy': 'NumPy', 'scipy': 'SciPy', 'mxnet': 'MXNet'}
    return ', '.join('%s: %s %s, %d threads' % (
        next((name for part, name in owners.items() if part in each['filepath']), 'other'),
        each['internal_api'], each['version'], each['num_threads'])
        for each in threadpool_info() if each['user_api'] == 'blas')


def environment(dtype='float32'):
    """Tell what the figures were measured on."""
    settings = ['%s=%s' % (name, os.environ[name]) for name in SETTINGS if name in os.environ]
    return 'mxnet %s, NumPy %s, Python %s, %s, %d cores, %s, %s; %s' % (
        mx.__version__, np.__version__, platform.python_version(), processor(), CORES,
        dtype, ' '.join(settings) or "MXNet's default threads", blas())


def write(output, name, setting, header, rows, new=True, dtype='float32'):
    """Print a table and write it as Markdown, with the setting and the environment below.

    It is a new file, or the end of the last one, as with other KERNELS.
    """
    if KERNELS:
        setting, new = 'Kernels of %s: %s' % (KERNELS, setting), False
    lines = ['| %s |' % ' | '.join(header), '|%s' % ('---|' * len(header))]
    lines += ['| %s |' % ' | '.join(map(str, row)) for row in rows]
    text = '\n'.join(lines) + '\n\n%s\n(`python examples/benchmarks/%s.py`; %s.)\n' % (
        setting, name, environment(dtype))
    print('\n' + text)
    output.mkdir(parents=True, exist_ok=True)
    with open(output / (name + '.md'), 'w' if new else 'a', encoding='utf-8') as file:
        file.write(('# %s\n\n' % name.replace('_', ' ').capitalize() if new else '\n') + text)


def save_picture(output, name, figure):
    figure.tight_layout()
    output.mkdir(parents=True, exist_ok=True)
    figure.savefig(output / (name + '.png'), dpi=110)
    pyplot.close(figure)

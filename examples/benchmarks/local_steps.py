"""What is saved in a slow network if workers communicate only at snapshots (local_steps=True)?

Two and four workers of dist_sync on this machine train least squares by svrg_lbfgs
until the gradient is 1e-6, once with sums over the workers in each step, and once with
steps of each worker alone. The shards are alike (shuffled rows) or unlike (other means,
scales and intercepts). A worker sleeps in each push and in each pull, as long as a
network would delay them. The bytes are those that cross the loopback device in both
directions, divided by the number of workers.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

import common
import mxnet as mx
import numpy as np
from common import pyplot
from distributed import bytes_of_worker

from svrg_optimization import SVRGModule

ROWS, FEATURES, BATCH_SIZE, DECAY, TOL = 4000, 20, 20, 1e-3, 1e-6
WAYS = {'together': common.COLORS['SGD'], 'alone': common.COLORS['SVRG']}


def least_squares(workers, unlike):
    """Return features and targets in the order of the workers' shards, and the least objective."""
    rng = np.random.RandomState(0)
    data, shard, shift = rng.normal(size=(ROWS, FEATURES)), ROWS // workers, np.zeros(workers)
    if unlike:
        data += np.repeat(rng.normal(size=(workers, FEATURES)), shard, 0)
        data *= np.repeat(np.exp(.5 * rng.normal(size=(workers, 1))), shard, 0)
        shift = 2 * rng.normal(size=workers)
    weights = rng.normal(size=FEATURES) * 2 / np.sqrt(FEATURES)
    targets = data @ weights + np.repeat(shift, shard) + rng.normal(size=ROWS)
    best = np.linalg.solve(data.T @ data / ROWS + DECAY * np.eye(FEATURES),
                           data.T @ targets / ROWS)
    return data, targets, (np.mean((data @ best - targets) ** 2) + DECAY * best @ best) / 2


def delayed(kvstore, seconds):
    """Let each push and each pull sleep before it; return a list that grows with each."""
    push, pull, sent = kvstore.push, kvstore.pull, []

    def slow_push(key, value, priority=0):
        time.sleep(seconds)
        sent.append(key)
        push(key, value, priority)

    def slow_pull(key, out=None, priority=0, ignore_sparse=True):
        time.sleep(seconds)
        sent.append(key)
        pull(key, out, priority, ignore_sparse)

    def slow_pushpull(key, value, out=None, priority=0):
        slow_push(key, value, priority)
        slow_pull(key, value if out is None else out, priority)

    kvstore.push, kvstore.pull, kvstore.pushpull = slow_push, slow_pull, slow_pushpull
    return sent


def work(way, unlike, delay, dtype):
    """Train to the tolerance as one worker; the one of rank 0 prints what it found."""
    kvstore = mx.kv.create('dist_sync')
    data, targets, least = least_squares(kvstore.num_workers, unlike)
    own = np.array_split(np.arange(ROWS), kvstore.num_workers)[kvstore.rank]
    train_data = mx.io.NDArrayIter(*(mx.nd.array(each[own], dtype=dtype)
                                     for each in (data, targets)), BATCH_SIZE, label_name='label')
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True)
    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
                        label_names=('label',), update_freq=1, tol=TOL,
                        local_steps=way == 'alone')
    curve, sent = [], delayed(kvstore, delay / 1e3)

    def mark(_=None):
        curve.append((time.perf_counter() - tic, module.objective - least))

    kvstore._barrier()
    before, tic = bytes_of_worker(kvstore.num_workers), time.perf_counter()
    module.fit(train_data, kvstore=kvstore, initializer=mx.init.Zero(), eval_metric='mse',
               num_epoch=100, optimizer='svrg_lbfgs', optimizer_params={'wd': DECAY},
               batch_end_callback=lambda param: None if param.nbatch else mark())
    mark()
    bytes_sent = bytes_of_worker(kvstore.num_workers) - before
    kvstore._barrier()
    if kvstore.rank == 0:
        print(json.dumps({'epochs': module._snapshot.num_taken - 1, 'seconds': curve[-1][0],
                          'norm': module.gradient_norm,
                          'messages': len(sent), 'kilobytes': bytes_sent / 1e3, 'curve': curve}))


def run_cluster(workers, *arguments):
    """Train in a cluster; return what rank 0 found."""
    with tempfile.TemporaryFile('w+') as printed:
        subprocess.run([sys.executable, '-m', 'svrg_optimization.launch', '-n', str(workers), '-s',
                        '1', '--', sys.executable, __file__, *map(str, arguments)],
                       env={**os.environ, 'OMP_NUM_THREADS': '1', 'MXNET_SUBGRAPH_VERBOSE': '0'},
                       stdout=printed, check=True)
        printed.seek(0)
        line = next(line for line in printed if '{' in line)
    return json.loads(line[line.index('{'):])


def draw(found, output):
    """Draw the objective over the seconds."""
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for way, color in WAYS.items():
        axes.semilogy(*zip(*((seconds, max(excess, 1e-14)) for seconds, excess in
                             found[way]['curve'])), color=color, marker='.', label=way)
    axes.set_xlabel('seconds')
    axes.set_ylabel('objective above its least')
    axes.set_title('Two workers, 10 ms in each push and pull', **common.TITLE)
    axes.legend()
    common.save_picture(output, 'local_steps', figure)


def main():
    if os.environ.get('DMLC_ROLE') == 'worker':
        way, unlike, delay, dtype = sys.argv[1:]
        common.quiet()
        work(way, unlike == 'unlike', float(delay), dtype)
        return
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--workers', type=int, nargs='+', default=[2, 4])
    parser.add_argument('--delays', type=float, nargs='+', default=[0, 1, 10, 50],
                        help='in milliseconds')
    parser.add_argument('--dtype', default='float64')
    args, rows, errors = parser.parse_args(), [], {}
    for shards, workers in itertools.product(('alike', 'unlike'), args.workers):
        found = {(way, delay): run_cluster(workers, way, shards, delay, args.dtype)
                 for delay, way in itertools.product(args.delays, WAYS)}
        for way in WAYS:
            of_way = [found[way, delay] for delay in args.delays]
            first = of_way[0]
            for delay, result in zip(args.delays, of_way):
                by_formula = first['seconds'] + (delay - args.delays[0]) / 1e3 * first['messages']
                if delay >= 10:
                    errors[workers] = max(errors.get(workers, 0),
                                          abs(1 - by_formula / result['seconds']))
            epochs = first['epochs']
            if first['norm'] > TOL:
                epochs = '%d, to %.0e' % (epochs, first['norm'])
            rows.append([shards, workers, way, epochs, '{:,}'.format(first['messages']),
                         '%.0f' % first['kilobytes'],
                         *('%.1f' % result['seconds'] for result in of_way)])
            print(*rows[-1], flush=True)
        if (shards, workers) == ('alike', 2) and 10 in args.delays:
            draw({way: found[way, 10] for way in WAYS}, args.output)
    common.write(args.output, 'local_steps',
                 'Least squares of %d rows of %d features, batches of %d rows a worker of one '
                 'thread, to a gradient of %g, with each delay of a push or a pull. From 10 ms on '
                 'the formula is right to %s.' % (
                     ROWS, FEATURES, BATCH_SIZE, TOL, ' and '.join(
                         '%.0f%% with %d workers' % (100 * error, workers)
                         for workers, error in errors.items())),
                 ['shards', 'workers', 'steps', 'epochs', 'messages', 'kB',
                  *('%g ms' % delay for delay in args.delays)], rows, dtype=args.dtype)


if __name__ == '__main__':
    main()

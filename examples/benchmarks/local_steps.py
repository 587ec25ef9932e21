"""What is saved in a slow network if workers communicate only at snapshots (local_steps=True)?

Workers of dist_sync on this machine train least squares by svrg_lbfgs to a tolerance, once
with sums over the workers in each step, and once with steps of each worker alone. The shards
are alike (shuffled rows) or unlike (other means, scales and intercepts). A worker sleeps in
each push and in each pull, as long as a network would delay them. The bytes are those that
cross the loopback device in both directions, divided by the number of workers.
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
from distributed import bytes_of_worker

from svrg_optimization import SVRGModule

ROWS, FEATURES, BATCH_SIZE, DECAY, TOL = 4000, 20, 20, 1e-3, 1e-6
WAYS = 'together', 'alone'


def least_squares(workers, unlike):
    """Return features and targets in the order of the workers' shards."""
    rng = np.random.RandomState(0)
    data, shard, shift = rng.normal(size=(ROWS, FEATURES)), ROWS // workers, np.zeros(workers)
    if unlike:
        data += np.repeat(rng.normal(size=(workers, FEATURES)), shard, 0)
        data *= np.repeat(np.exp(.5 * rng.normal(size=(workers, 1))), shard, 0)
        shift = 2 * rng.normal(size=workers)
    weights = rng.normal(size=FEATURES) * 2 / np.sqrt(FEATURES)
    return data, data @ weights + np.repeat(shift, shard) + rng.normal(size=ROWS)


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
    own = np.array_split(np.arange(ROWS), kvstore.num_workers)[kvstore.rank]
    train_data = mx.io.NDArrayIter(*(
        mx.nd.array(each[own], dtype=dtype)
        for each in least_squares(kvstore.num_workers, unlike)), BATCH_SIZE, label_name='label')
    output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True)
    module = SVRGModule(mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label')),
                        label_names=('label',), update_freq=1, tol=TOL,
                        local_steps=way == 'alone')
    sent = delayed(kvstore, delay / 1e3)
    kvstore._barrier()
    before, tic = bytes_of_worker(kvstore.num_workers), time.perf_counter()
    module.fit(train_data, kvstore=kvstore, initializer=mx.init.Zero(), eval_metric='mse',
               num_epoch=100, optimizer='svrg_lbfgs', optimizer_params={'wd': DECAY})
    seconds = time.perf_counter() - tic
    bytes_sent = bytes_of_worker(kvstore.num_workers) - before
    kvstore._barrier()
    if kvstore.rank == 0:
        print(json.dumps({'epochs': module._snapshot.num_taken - 1, 'seconds': seconds,
                          'has_converged': module.has_converged, 'messages': len(sent),
                          'kilobytes': bytes_sent / 1e3}))


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


def main():
    if os.environ.get('DMLC_ROLE') == 'worker':
        way, unlike, delay, dtype = sys.argv[1:]
        common.quiet()
        work(way, unlike == 'unlike', float(delay), dtype)
        return
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--workers', type=int, nargs='+', default=[2])
    parser.add_argument('--delay', type=float, default=10, help='in milliseconds')
    parser.add_argument('--dtype', default='float64')
    args, rows = parser.parse_args(), []
    for shards, workers, way in itertools.product(('alike', 'unlike'), args.workers, WAYS):
        fast, slow = (run_cluster(workers, way, shards, delay, args.dtype)
                      for delay in (0, args.delay))
        if not (fast['has_converged'] and slow['has_converged']):
            sys.exit('%d workers with %s shards have not converged %s' % (workers, shards, way))
        rows.append([shards, workers, way, fast['epochs'], fast['messages'],
                     '%.0f' % fast['kilobytes'], '%.1f' % fast['seconds'],
                     '%.1f' % slow['seconds'],
                     '%.1f' % (fast['seconds'] + fast['messages'] * args.delay / 1e3)])
        print(*rows[-1], sep=' | ', flush=True)
    delay = '%g ms' % args.delay
    common.write(args.output, 'local_steps',
                 'Least squares of %d rows of %d features, by svrg_lbfgs to tol=%g. Batches of %d '
                 'rows a worker of one thread; each push and each pull is delayed. Expected: the '
                 'seconds without a delay, and the delay of all messages of a worker.' % (
                     ROWS, FEATURES, TOL, BATCH_SIZE),
                 ['shards', 'workers', 'steps', 'epochs', 'messages of a worker',
                  'kB of a worker', 's, no delay', 's, ' + delay, 'expected, ' + delay], rows,
                 dtype=args.dtype)


if __name__ == '__main__':
    main()

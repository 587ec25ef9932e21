"""What does a snapshot cost with 1, 2 and 4 workers, and what does a worker send?

Trains a perceptron 784-512-10 on generated rows with dist_sync and with
dist_async, in clusters on this machine. The rows are shared among the workers,
so that a snapshot's pass becomes shorter with more of them as long as there
are idle cores. Each figure is the median of several; the bytes are those that
cross the loopback device, in both directions, over the number of workers.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule

LAUNCHER = Path(__file__).parent.parent / 'distributed' / 'launch.py'
COUNTERS = Path('/proc/net/dev')


def bytes_over_loopback():
    """Return the bytes sent over the loopback device so far (Linux)."""
    return int(re.search(r'lo:\s*(\d+)', COUNTERS.read_text()).group(1))


def network(hidden):
    layer = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=hidden, name='hidden')
    scores = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type='tanh'), num_hidden=10,
                                   name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def measure(kvstore, what, times):
    """Return the median time of a call that all workers make, and the bytes of one worker."""
    seconds, sent = [], []
    for _ in range(times):
        mx.nd.waitall()
        kvstore._barrier()
        before = bytes_over_loopback()
        kvstore._barrier()
        tic = time.perf_counter()
        what()
        mx.nd.waitall()
        kvstore._barrier()
        seconds.append(time.perf_counter() - tic)
        sent.append((bytes_over_loopback() - before) / kvstore.num_workers)
        kvstore._barrier()
    return np.median(seconds), np.median(sent)


def work(args):
    """Measure as one worker; the one of rank 0 prints what it found."""
    kvstore = mx.kv.create(args.kind)
    rows = args.rows // kvstore.num_workers
    rng = np.random.RandomState(kvstore.rank)
    train_data = mx.io.NDArrayIter(rng.normal(size=(rows, 784)), rng.randint(10, size=rows),
                                   args.batch_size)
    module = SVRGModule(network(args.hidden), update_freq=1)
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(kvstore, optimizer_params={'learning_rate': 0.01})
    barriers, barrier = [], kvstore._barrier

    def snapshot():
        kvstore._barrier = lambda: (barriers.append(None), barrier())
        module.update_full_grads(train_data)
        kvstore._barrier = barrier

    batch = next(iter(train_data))

    def step():
        module.forward_backward(batch)
        module.update()

    snapshot()
    step()
    barriers.clear()
    snapshot_seconds, snapshot_bytes = measure(kvstore, snapshot, args.times)
    step_seconds, step_bytes = measure(kvstore, step, args.times)
    if kvstore.rank == 0:
        print(json.dumps({
            'kind': args.kind, 'workers': kvstore.num_workers,
            'parameters': sum(value.size for value in module.get_params()[0].values()),
            'snapshot_ms': 1e3 * snapshot_seconds, 'snapshot_bytes': snapshot_bytes,
            'barriers': len(barriers) / args.times,
            'step_ms': 1e3 * step_seconds, 'step_bytes': step_bytes}))


def run_cluster(kind, workers, args):
    """Measure in a cluster of so many workers; return what rank 0 found."""
    command = [sys.executable, str(LAUNCHER), '-n', str(workers), '-s', '1', '--', sys.executable,
               __file__, '--kind', kind]
    for name in ('rows', 'batch_size', 'hidden', 'times'):
        command += ['--' + name.replace('_', '-'), str(getattr(args, name))]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS='1',
                                       MXNET_SUBGRAPH_VERBOSE='0'))
    found = re.search(r'^\[worker \d+\] (\{.*\})$', finished.stdout, re.MULTILINE)
    if finished.returncode or not found:
        sys.exit(finished.stdout)
    return json.loads(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4])
    parser.add_argument('--rows', type=int, default=12800, help='of all workers together')
    parser.add_argument('--batch-size', type=int, default=64, help='of each worker')
    parser.add_argument('--hidden', type=int, default=512)
    parser.add_argument('--times', type=int, default=9)
    parser.add_argument('--kind', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if os.environ.get('DMLC_ROLE') == 'worker':
        work(args)
        return
    if not COUNTERS.exists():
        sys.exit('The bytes are read from %s, which only Linux has.' % COUNTERS)
    print('%d rows, batches of %d, one thread a worker; mxnet %s, Python %s, %s, %d cores\n' % (
        args.rows, args.batch_size, mx.__version__, platform.python_version(),
        platform.machine(), os.cpu_count()))
    print('| kvstore | workers | snapshot, ms | its bytes, over those of the weights | barriers '
          '| step, ms | its bytes, over those of the weights |')
    print('|---|---|---|---|---|---|---|')
    for kind in ('dist_sync', 'dist_async'):
        for workers in args.workers:
            found = run_cluster(kind, workers, args)
            weights = 4 * found['parameters']
            print('| %s | %d | %.0f | %.2f | %d | %.1f | %.2f |' % (
                kind, workers, found['snapshot_ms'], found['snapshot_bytes'] / weights,
                found['barriers'], found['step_ms'], found['step_bytes'] / weights))


if __name__ == '__main__':
    main()

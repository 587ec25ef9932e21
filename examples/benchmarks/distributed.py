"""What does a snapshot cost with 1, 2 and 4 workers, and what does a worker send?

Trains a perceptron 784-512-10 on generated rows with dist_sync and with
dist_async, in clusters on this machine. The workers share the rows, so the pass
of a snapshot becomes shorter with more workers, as long as there are idle cores.
Each figure is the median of several runs. The bytes are those that cross the
loopback device in both directions, divided by the number of workers.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import common
import mxnet as mx
import numpy as np

from svrg_optimization import SVRGModule

# Jobs begin as those of the tests do.
sys.path.append(str(Path(__file__).resolve().parents[2] / 'tests' / 'support'))
import mpi  # noqa: E402

COUNTERS = Path('/proc/net/dev')


def bytes_of_worker(workers):
    """Return the bytes that one worker has sent and received so far (Linux)."""
    numbers = {name.strip(): counts.split() for name, found, counts in (
        line.partition(':') for line in COUNTERS.read_text().splitlines()) if found}
    return int(numbers['lo'][0]) / workers  # what is sent is received


def perceptron(hidden):
    layer = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=hidden, name='hidden')
    scores = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type='tanh'), num_hidden=10,
                                   name='fc')
    return mx.sym.SoftmaxOutput(scores, name='softmax')


def measure(kvstore, what, times):
    """Return the median time of a call that all workers make, and the bytes of one worker.

    The bytes are the least: whatever else the machine sends only adds to them.
    """
    seconds, sent = [], []
    for _ in range(times):
        mx.nd.waitall()
        kvstore._barrier()
        before = bytes_of_worker(kvstore.num_workers)
        kvstore._barrier()
        tic = time.perf_counter()
        what()
        mx.nd.waitall()
        kvstore._barrier()
        seconds.append(time.perf_counter() - tic)
        sent.append(bytes_of_worker(kvstore.num_workers) - before)
        kvstore._barrier()
    return np.median(seconds), np.min(sent)


def work(args):
    """Measure as one worker; the one of rank 0 prints what it found."""
    kvstore = mx.kv.create(args.kind)
    rows = args.rows // kvstore.num_workers
    rng = np.random.RandomState(kvstore.rank)
    train_data = mx.io.NDArrayIter(rng.normal(size=(rows, 784)), rng.randint(10, size=rows),
                                   args.batch_size)
    module = SVRGModule(perceptron(args.hidden), update_freq=1)
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


def run_cluster(kind, workers, servers, args):
    """Measure in a cluster; return what rank 0 found."""
    measured = [__file__, '--kind', kind]
    for name in ('rows', 'batch_size', 'hidden', 'times'):
        measured += ['--' + name.replace('_', '-'), str(getattr(args, name))]
    processes = 1 + servers + workers
    command = mpi.mpirun(processes, measured, '--host', 'localhost:%d' % processes,
                         servers=servers)
    environment = {'PYTHONPATH': '', **os.environ, **mpi.AS_ROOT, 'OMP_NUM_THREADS': '1',
                   'MXNET_SUBGRAPH_VERBOSE': '0'}
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False,
                              env=environment)
    found = re.search(r'^\[.*\](?:<stdout>:)? (\{.*\})$', finished.stdout, re.MULTILINE)
    if finished.returncode or not found:
        sys.exit(finished.stdout)
    return json.loads(found.group(1))


def row_of(found, servers):
    """Return the cells of a cluster's row."""
    weights = 4 * found['parameters']
    return [found['kind'], '%d' % found['workers'], '%d' % servers,
            '%.0f' % found['snapshot_ms'], '%.2f' % (found['snapshot_bytes'] / weights),
            '%d' % found['barriers'],
            '%.1f' % found['step_ms'], '%.2f' % (found['step_bytes'] / weights)]


def main():
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4])
    parser.add_argument('--servers', type=int, nargs='+', default=[1])
    parser.add_argument('--kinds', nargs='+', default=['dist_sync', 'dist_async'])
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
    rows = []
    for kind, workers, servers in itertools.product(args.kinds, args.workers, args.servers):
        found = run_cluster(kind, workers, servers, args)
        rows.append(row_of(found, servers))
        print(*rows[-1], sep=' | ', flush=True)
    common.write(args.output, 'distributed',
                 'Perceptron 784-%d-10, P = %.1f MB of weights. %d rows, shared by all workers, '
                 'batches of %d, one thread a process. Times: the median of %d; bytes: the '
                 'least of a worker, in both directions.' % (
                     args.hidden, 4e-6 * found['parameters'], args.rows, args.batch_size,
                     args.times),
                 ['kvstore', 'workers', 'servers', 'snapshot, ms', 'its bytes / P',
                  'barriers', 'step, ms', 'its bytes / P'], rows)


if __name__ == '__main__':
    main()

"""What the workers of the distributed tests do; each function is one scenario.

Run as a script by every worker of a cluster. The function's result is written
to a file, from which the test reads it.
"""

import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import mxnet as mx

from problems import Problem


class NoBatches:
    """The data of a worker that has none."""

    def __init__(self, like):
        self.provide_data, self.provide_label = like.provide_data, like.provide_label
        self.batch_size = like.batch_size

    def __iter__(self):
        return iter(())

    def reset(self):
        """Begin anew, with nothing."""


def shard_of(problem, sizes, rank, batch_size):
    """Return the iterator over the rows of one rank; sizes are those of all shards."""
    begin = sum(sizes[:rank])
    rows = slice(begin, begin + sizes[rank])
    if not sizes[rank]:
        return NoBatches(problem.iterator(batch_size))
    return mx.io.NDArrayIter(problem.features[rows], problem.targets[rows], batch_size,
                             label_name='label')


def bound(problem, kvstore, train_data, devices=1, seed=None, optimizer=None, update_freq=1,
          **arguments):
    """Return a module that is ready to train; with a seed its weights are random."""
    module = problem.module(update_freq, context=[mx.cpu(i) for i in range(devices)], **arguments)
    module.bind(train_data.provide_data, train_data.provide_label)
    if seed is None:
        module.init_params(arg_params=problem.arg_params())
    else:
        mx.random.seed(seed)
        module.init_params(mx.init.Normal(1))
    module.init_optimizer(kvstore, 'sgd', optimizer or {'learning_rate': 0.1})
    return module


def weights_of(module):
    """Read a module's weights without any synchronization with others."""
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}


def full_gradient_of(module):
    """Sum a module's full gradient over its devices."""
    return {name: sum(share[name].asnumpy() for share in module._param_dict)
            for name in module._param_dict[0]}


def recording_barriers(kvstore):
    """Return a list that grows with each call that waits for all workers."""
    barrier, calls = kvstore._barrier, []

    def recording():
        calls.append(None)
        barrier()

    kvstore._barrier = recording
    return calls


def snapshots(kvstore, problem, sizes, batch_sizes, devices=1, count=10, seeds=None):
    """Take snapshots, with some steps between; return what each of them found."""
    problem = Problem(**problem)
    rank = kvstore.rank
    train_data = shard_of(problem, sizes, rank, batch_sizes[rank])
    module = bound(problem, kvstore, train_data, devices, seeds and seeds[rank])
    some = next(iter(problem.iterator(batch_sizes[rank])))
    barriers = recording_barriers(kvstore)
    found = []
    for _ in range(count):
        barriers.clear()
        module.update_full_grads(train_data)
        found.append({'barriers': len(barriers), 'live': weights_of(module),
                      'weights': weights_of(module._mod_aux), 'full': full_gradient_of(module)})
        for _ in range(rank + 1 if kvstore.type == 'dist_async' else 1):
            module.forward_backward(some)
            module.update()
    return found


def fit(kvstore, problem, sizes, batch_size, num_epoch, update_freq=1, devices=1, optimizer=None):
    """Train with fit; return the weights after it."""
    problem = Problem(**problem)
    train_data = shard_of(problem, sizes, kvstore.rank, batch_size)
    module = problem.module(update_freq, context=[mx.cpu(i) for i in range(devices)])
    module.fit(train_data, kvstore=kvstore, arg_params=problem.arg_params(), eval_metric='mse',
               optimizer_params=optimizer, num_epoch=num_epoch)
    return weights_of(module)


def fit_with_error(kvstore, problem, sizes, batch_size):
    """Call fit where it must raise; return the message and whether a step was made."""
    problem = Problem(**problem)
    train_data = shard_of(problem, sizes, kvstore.rank, batch_size)
    module = problem.module()
    steps = []
    try:
        module.fit(train_data, kvstore=kvstore, arg_params=problem.arg_params(), num_epoch=2,
                   batch_end_callback=steps.append)
    except ValueError as error:
        return str(error), len(steps), module._snapshot.in_force
    return None


def main():
    scenario, directory = sys.argv[1:]
    directory = Path(directory)
    arguments = pickle.loads((directory / 'arguments').read_bytes())
    kvstore = mx.kv.create(arguments.pop('kind', 'dist_sync'))
    result = globals()[scenario](kvstore, **arguments)
    (directory / ('result-%d' % kvstore.rank)).write_bytes(pickle.dumps(result))
    kvstore._barrier()


if __name__ == '__main__':
    warnings.simplefilter('error', UserWarning)
    try:
        main()
    except BaseException:
        # An ordinary exit would wait for the other workers.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

"""What the workers of the distributed tests do; each function is one scenario.

Run as a script by every worker of a job, with the directory where a test has left the checks
to make. What they return is written there.
"""

import faulthandler
import functools
import io
import logging
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import mxnet as mx

from gluon_workers import fit_gluon  # noqa: F401
from problems import Problem, SparseProblem, prepared, rows_of_batch
from sequences import Sequences
from shards import error_of, problem_of, shard_of, weights_of
from svrg_optimization import SVRGModule


def bound(problem, kvstore, train_data, devices=1, seed=None, params=None, **arguments):
    """Return a module that is ready to train; with a seed its weights are random."""
    module = problem.module(context=[mx.cpu(i) for i in range(devices)])
    module.bind(train_data.provide_data, train_data.provide_label)
    if seed is None:
        module.init_params(arg_params=problem.arg_params())
    else:
        mx.random.seed(seed)
        module.init_params(mx.init.Normal(1))
    module.init_optimizer(kvstore, optimizer_params={'learning_rate': 0.1} if params is None
                          else params, **arguments)
    return module


def full_gradient_of(module):
    """Sum a module's full gradient over its devices."""
    return {name: sum(share[name].asnumpy() for share in module._param_dict)
            for name in module._param_dict[0]}


def snapshots(kvstore, problem, sizes, batch_sizes, devices=1):
    """Take snapshots from weights of the worker's own, with some steps between.

    Return what each of them found.
    """
    problem, rank = problem_of(problem, sizes), kvstore.rank
    train_data = shard_of(problem, sizes, rank, batch_sizes[rank])
    module = bound(problem, kvstore, train_data, devices, rank)
    some = next(iter(problem.iterator(batch_sizes[rank])))
    found = []
    for _ in range(10):
        before = weights_of(module)
        module.update_full_grads(train_data)
        found.append({'before': before, 'live': weights_of(module),
                      'objective': module.full_objective,
                      'weights': weights_of(module._mod_aux), 'full': full_gradient_of(module)})
        for _ in range(rank + 1 if kvstore.type == 'dist_async' else 1):
            module.forward_backward(some)
            module.update()
    return found


def fit(kvstore, sizes, problem=(), batch_size=8, num_epoch=4, begin_epoch=0, update_freq=1,
        devices=1, params=(('learning_rate', 0.01),), scheduler=None, apart=0, prefix=None,
        load_from=None, with_states=True, last_batch_handle='pad', steps=None, optimizer='sgd',
        **settings):
    """Train with fit, from a checkpoint or from the problem's weights.

    Those of each worker are `apart` from those of the one before. Rank 0 saves at `prefix`.
    Return what a test may ask for. `steps` gets the data of each step.
    """
    problem, log, params, epochs = problem_of(problem, sizes), io.StringIO(), dict(params), []
    steps = [] if steps is None else steps
    logging.basicConfig(level=logging.INFO, stream=log, force=True)
    context = [mx.cpu(i) for i in range(devices)]
    if scheduler:
        params['lr_scheduler'] = mx.lr_scheduler.FactorScheduler(**scheduler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings('always', '.*the states of the optimizer|train_data had')
        if load_from:
            module = SVRGModule.load(load_from, begin_epoch, load_optimizer_states=with_states,
                                     label_names=('label',), context=context)
        else:
            module = problem.module(update_freq, context=context, **settings)

        def end_epoch(epoch, *_):
            epochs.append(epoch)
            if prefix and kvstore.rank == 0:
                module.save_checkpoint(prefix, epoch + 1, save_optimizer_states=True)

        shard = shard_of(problem, sizes, kvstore.rank, batch_size, last_batch_handle)
        module.fit(shard, kvstore=kvstore, arg_params=module._arg_params or {
                       name: value + apart * kvstore.rank if apart else value
                       for name, value in problem.arg_params().items()},
                   eval_metric='mse', optimizer=optimizer, optimizer_params=params,
                   begin_epoch=begin_epoch, num_epoch=num_epoch, epoch_end_callback=end_epoch,
                   batch_end_callback=lambda param: steps.append(
                       param.locals['data_batch'].data[0].asnumpy()),
                   sparse_row_id_fn=rows_of_batch if isinstance(problem, SparseProblem) else None)
    metric = module._svrg.training.learned.metric
    return {'weights': weights_of(module), 'full': full_gradient_of(module), 'steps': steps,
            'warnings': [str(warning.message) for warning in caught], 'log': log.getvalue(),
            'epochs': len(epochs), 'norm': module.gradient_norm,
            'has_converged': module.has_converged, 'blocks': metric and metric.blocks}


def refused(kvstore, way='fit', unlike=(), **arguments):
    """Return the message of the error of a training, and how many steps it took before.

    `unlike` has for arguments the value of each rank.
    """
    own = {name: values[kvstore.rank] for name, values in dict(unlike).items()}
    steps = []
    return error_of(functools.partial(globals()[way], kvstore, steps=steps,
                                      **{**arguments, **own})), len(steps)


def set_on_one(kvstore, problem, sizes, batch_size, setter):
    """Make two iterations, between which one worker sets its weights; return them."""
    problem = problem_of(problem, sizes)
    shard = shard_of(problem, sizes, kvstore.rank, batch_size)
    module = bound(problem, kvstore, shard, params={}, optimizer='newton_cg')
    module.update_full_grads(shard)
    if kvstore.rank == setter:
        module.set_params(*module.get_params())
    module.update_full_grads(shard)
    return weights_of(module)


def install_two(kvstore, kinds):
    """Install the optimizers of a plain Module and an SVRGModule; return the error's message."""
    for number, kind in enumerate(kinds):
        names = {part: {'name': 'w%d_%s' % (number, part)} for part in ('weight', 'bias')}
        problem = Problem(**names)
        module, optimizer = problem.module(), 'newton_cg'
        if kind == 'plain':
            module, optimizer = mx.mod.Module(problem.symbol, label_names=('label',)), 'sgd'
        prepared(module, problem.iterator())
        message = error_of(functools.partial(module.init_optimizer, kvstore, optimizer))
    return message


class Unpicklable(mx.optimizer.SGD):
    """An optimizer that cannot be sent to servers."""

    def __reduce__(self):
        raise TypeError('not this one')


def init_optimizer_twice(kvstore):
    """Install an optimizer that fails, and then one by the KVStore's name; return a full gradient.

    The KVStore by its name must be the one that there is. A rate does not reach its servers.
    """
    problem = Problem(rows=24)
    module = problem.bound(4)
    try:
        module.init_optimizer(kvstore, Unpicklable())
    except TypeError as error:
        message = str(error)
    module.init_optimizer(kvstore.type, 'sgd', {'learning_rate': 0.1})
    module.update_full_grads(shard_of(problem, [12, 12], kvstore.rank, 4))
    return (message, full_gradient_of(module), module._kvstore is kvstore,
            error_of(setattr, module, 'learning_rate', 0.2), module.learning_rate)


def fit_buckets(kvstore, num_epoch, params, directory):
    """Train a bucketing module, on targets that are greater by the worker's rank, and save it."""
    problem = Sequences()
    problem.targets += kvstore.rank
    module = problem.fit(problem.module(2), num_epoch, kvstore=kvstore, optimizer_params=params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings('always', '.*the states of the optimizer')
        for epoch in (1, 2):
            module.save_checkpoint('%s/%d' % (directory, kvstore.rank), epoch,
                                   save_optimizer_states=True)
    return weights_of(module), len(caught)


def sum_of_thirds(kvstore):
    """Return the sum of a third from each worker, as servers add it in float64."""
    third, total = mx.nd.full((3,), 1 / 3, dtype='float64'), mx.nd.zeros((3,), dtype='float64')
    kvstore.init('third', total)
    kvstore.push('third', third)
    kvstore.pull('third', out=total)
    return total.asnumpy()


def compressing_kvstore(kvstore):
    """Give a module a KVStore that was told to compress; return the message."""
    problem = Problem(rows=24)
    kvstore.set_gradient_compression({'type': '2bit', 'threshold': 0.5})
    return error_of(bound, problem, kvstore, problem.iterator(4))


def main(directory):
    kind, checks = pickle.loads((directory / 'checks').read_bytes())
    results, scenarios = {}, globals().copy()
    if kind == 'horovod':
        import horovod_workers  # noqa: PLC0415

        results['before init'] = horovod_workers.before_init()
        kvstore = horovod_workers.begin()
        scenarios.update(vars(horovod_workers))
    else:
        kvstore = mx.kv.create(kind)
    for name, scenario, arguments in checks:
        print('checks', name, flush=True)
        kvstore._barrier()
        results[name] = scenarios[scenario](kvstore, **arguments)
    (directory / ('result-%d' % kvstore.rank)).write_bytes(pickle.dumps(results))
    if kind != 'horovod':
        kvstore._barrier()


if __name__ == '__main__':
    faulthandler.enable()
    warnings.simplefilter('error', UserWarning)
    warnings.filterwarnings('ignore', 'Parameters already initialized')
    try:
        main(Path(sys.argv[1]))
    except BaseException:
        # An ordinary exit would wait for the other workers.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

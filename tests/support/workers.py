"""What the workers of the distributed tests do; each function is one scenario.

Run as a script by every worker of a cluster. The function's result is written
to a file, from which the test reads it.
"""

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

import gluon_workers
from problems import Problem, SparseProblem
from sequences import Sequences
from shards import error_of, problem_of, shard_of, weights_of
from svrg_optimization import SVRGModule


def bound(problem, kvstore, train_data, devices=1, seed=None, optimizer=None, update_freq=1,
          name='sgd', **arguments):
    """Return a module that is ready to train; with a seed its weights are random."""
    module = problem.module(update_freq, context=[mx.cpu(i) for i in range(devices)], **arguments)
    module.bind(train_data.provide_data, train_data.provide_label)
    if seed is None:
        module.init_params(arg_params=problem.arg_params())
    else:
        mx.random.seed(seed)
        module.init_params(mx.init.Normal(1))
    module.init_optimizer(
        kvstore, name, {'learning_rate': 0.1} if optimizer is None else optimizer)
    return module


def full_gradient_of(module):
    """Sum a module's full gradient over its devices."""
    return {name: sum(share[name].asnumpy() for share in module._param_dict)
            for name in module._param_dict[0]}


def snapshots(kvstore, problem, sizes, batch_sizes, devices=1, count=10, seeds=None, apart=0):
    """Take snapshots, with some steps between; return what each of them found.

    Before the first the weights of a worker are `apart` from those of the one before.
    """
    problem = problem_of(problem)
    rank = kvstore.rank
    train_data = shard_of(problem, sizes, rank, batch_sizes[rank])
    module = bound(problem, kvstore, train_data, devices, seeds and seeds[rank])
    if apart:
        module.set_params({name: value + apart * rank
                           for name, value in module.get_params()[0].items()}, {})
    some = next(iter(problem.iterator(batch_sizes[rank])))
    found = []
    for _ in range(count):
        before = weights_of(module)
        module.update_full_grads(train_data)
        found.append({'before': before, 'live': weights_of(module), 'objective': module.objective,
                      'weights': weights_of(module._mod_aux), 'full': full_gradient_of(module)})
        for _ in range(rank + 1 if kvstore.type == 'dist_async' else 1):
            module.forward_backward(some)
            module.update()
    return found


def fit(kvstore, problem, sizes, batch_size, num_epoch, update_freq=1, devices=1, optimizer=None,
        prefix=None, resume_at=0, scheduler=None, **arguments):
    """Train with fit, from a checkpoint or from the problem's weights.

    Returns the weights after it, the full gradient, the warnings, and the data of each step.
    """
    problem = problem_of(problem)
    train_data = shard_of(problem, sizes, kvstore.rank, batch_size)
    context = [mx.cpu(i) for i in range(devices)]
    optimizer, steps = dict(optimizer), []
    if scheduler:
        optimizer['lr_scheduler'] = mx.lr_scheduler.FactorScheduler(**scheduler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings('always', '.*the states of the optimizer|train_data had')
        if resume_at:
            module = SVRGModule.load(prefix, resume_at, load_optimizer_states=True,
                                     label_names=('label',), context=context)
        else:
            module = problem.module(update_freq, context=context, **arguments)

        def save(epoch, *_):
            if prefix and kvstore.rank == 0:
                module.save_checkpoint(prefix, epoch + 1, save_optimizer_states=True)

        module.fit(train_data, kvstore=kvstore, arg_params=module._arg_params or
                   problem.arg_params(), eval_metric='mse', optimizer_params=optimizer,
                   begin_epoch=resume_at, num_epoch=num_epoch, epoch_end_callback=save,
                   batch_end_callback=lambda param: steps.append(
                       param.locals['data_batch'].data[0].asnumpy()),
                   sparse_row_id_fn=rows_of_batch if isinstance(problem, SparseProblem) else None)
    return {'weights': weights_of(module), 'full': full_gradient_of(module),
            'steps': steps, 'warnings': [str(warning.message) for warning in caught],
            'batches': module._snapshot.full_gradient.batches}


def rows_of_batch(batch):
    """Tell which rows of a row_sparse parameter a batch needs."""
    return {'w': batch.data[0].indices}


def fit_unlike(kvstore, sizes, batch_sizes=(8, 8), settings=({}, {}), fits=({}, {}),
               prefixes=(None, None), **arguments):
    """Call fit with what differs by rank; return the message of its error, and its steps."""
    problem, rank, steps = Problem(rows=sum(sizes)), kvstore.rank, []
    if prefixes[rank]:
        module = SVRGModule.load(prefixes[rank], 1, label_names=('label',))
    else:
        module = problem.module(**settings[rank])
    message = error_of(functools.partial(
        module.fit, shard_of(problem, sizes, rank, batch_sizes[rank], **arguments),
        kvstore=kvstore, arg_params=problem.arg_params(), eval_metric='mse',
        batch_end_callback=steps.append, **{'num_epoch': 4, **fits[rank]}))
    return message, len(steps)


def fit_with_a_rule(kvstore, problem, sizes, batch_size, num_epoch, wd, **settings):
    """Train with svrg_lbfgs, or take a snapshot.

    Return the weights, the rate and what was logged, or the message of an error.
    """
    problem, log = problem_of(problem), io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=log, force=True)
    module = problem.module(1, **settings)
    train_data = shard_of(problem, sizes, kvstore.rank, batch_size)
    message = error_of(functools.partial(
        module.fit, train_data, kvstore=kvstore, arg_params=problem.arg_params(),
        eval_metric='mse', num_epoch=num_epoch, optimizer='svrg_lbfgs',
        optimizer_params={'wd': wd}))
    if not (message or num_epoch):
        module.update_full_grads(train_data)
    return message or (weights_of(module), module.learning_rate, log.getvalue())


def set_on_one(kvstore, problem, sizes, batch_size, setter):
    """Take steps that are too large from a snapshot, and another one; one worker sets its weights.

    Return the weights and how often training went back.
    """
    problem = problem_of(problem)
    shard = shard_of(problem, sizes, kvstore.rank, batch_size)
    module = bound(problem, kvstore, shard, optimizer={}, name='svrg_lbfgs')
    module.update_full_grads(shard)
    rule = module._optimizer.lr_scheduler
    rule.rate = 3 * rule.gamma
    shard.reset()
    for batch in shard:
        module.forward_backward(batch)
        module.update()
    if kvstore.rank == setter:
        module.set_params(*module.get_params())
    module.update_full_grads(shard)
    return weights_of(module), rule.num_rollbacks


def install_two(kvstore, kinds):
    """Install the optimizers of a plain Module and an SVRGModule; return the error's message."""
    for number, kind in enumerate(kinds):
        names = {part: {'name': 'w%d_%s' % (number, part)} for part in ('weight', 'bias')}
        problem = Problem(**names)
        module, optimizer = problem.module(), 'svrg_lbfgs'
        if kind == 'plain':
            module, optimizer = mx.mod.Module(problem.symbol, label_names=('label',)), 'sgd'
        shard = problem.iterator()
        module.bind(shard.provide_data, shard.provide_label)
        module.init_params()
        message = error_of(functools.partial(module.init_optimizer, kvstore, optimizer))
    return message


def fit_until_converged(kvstore, problem, sizes, batch_size, tols):
    """Train with a rate of its own; return weights, norm and epochs, or the message of an error."""
    problem, epochs = problem_of(problem), []
    module = problem.module(2, tol=tols[kvstore.rank])
    message = error_of(functools.partial(
        module.fit, shard_of(problem, sizes, kvstore.rank, batch_size), kvstore=kvstore,
        arg_params=problem.arg_params(), eval_metric='mse', num_epoch=200,
        epoch_end_callback=lambda epoch, *_: epochs.append(epoch), optimizer='svrg_lbfgs',
        optimizer_params={'wd': 0.05}))
    return message or (weights_of(module), module.gradient_norm * module.has_converged, len(epochs))


def fit_on_raw_columns(kvstore, problem, sizes, batch_size, units):
    """Train on columns in some units; return the metric's block, the norm and the weights."""
    problem = problem_of(problem)
    problem.features *= units
    module = problem.module(2, tol=1e-4)
    module.fit(shard_of(problem, sizes, kvstore.rank, batch_size), kvstore=kvstore,
               initializer=mx.init.Zero(), eval_metric='mse', num_epoch=200,
               optimizer='svrg_lbfgs', optimizer_params={'wd': 1e-3})
    block, = module._optimizer.lr_scheduler.metric.blocks
    return block, module.gradient_norm * module.has_converged, weights_of(module)


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


def fit_buckets(kvstore, num_epoch, optimizer, directory, **arguments):
    """Train a bucketing module, on targets that are greater by the worker's rank, and save it."""
    problem = Sequences()
    problem.targets += kvstore.rank
    module = problem.module(2, **arguments)
    module.fit(problem.iterator(), kvstore=kvstore, arg_params=problem.arg_params(),
               eval_metric='mse', optimizer_params=optimizer, num_epoch=num_epoch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings('always', '.*the states of the optimizer')
        module.save_checkpoint('%s/%d' % (directory, kvstore.rank), 1, save_optimizer_states=True)
        module.save_checkpoint('%s/%d' % (directory, kvstore.rank), 2, save_optimizer_states=True)
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


def main():
    scenario, directory = sys.argv[1:]
    directory = Path(directory)
    arguments = pickle.loads((directory / 'arguments').read_bytes())
    kvstore = mx.kv.create(arguments.pop('kind', 'dist_sync'))
    function, = (vars(module)[scenario] for module in (
        sys.modules[__name__], gluon_workers) if scenario in vars(module))
    result = function(kvstore, **arguments)
    (directory / ('result-%d' % kvstore.rank)).write_bytes(pickle.dumps(result))
    kvstore._barrier()


if __name__ == '__main__':
    warnings.simplefilter('error', UserWarning)
    warnings.filterwarnings('ignore', 'Parameters already initialized')
    try:
        main()
    except BaseException:
        # An ordinary exit would wait for the other workers.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

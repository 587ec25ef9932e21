"""What the workers of the distributed tests do with sampled full gradients."""

import functools

from problems import Problem
from shards import error_of, shard_of, weights_of
from svrg_optimization import Sampling


def fit_sampled(kvstore, problem, sizes, full_sizes, full_batch_sizes, batches, updates, num_epoch,
                optimizer, **arguments):
    """Train on full gradients over data of each worker's own; return weights and snapshots."""
    problem, rank = Problem(**problem), kvstore.rank
    data = shard_of(problem, full_sizes, rank, full_batch_sizes[rank])
    module = problem.module(sampling=Sampling(batches, updates, data), **arguments)
    module.fit(shard_of(problem, sizes, rank, 8), kvstore=kvstore, eval_metric='mse',
               arg_params=problem.arg_params(), optimizer_params=optimizer, num_epoch=num_epoch)
    return weights_of(module), module._snapshot.num_taken


def sampled_unlike(kvstore, of_ranks):
    """Call fit with arguments of each rank's own; return the error's message and the steps."""
    rank = kvstore.rank
    given = {'sizes': [16, 16], **{name: values[rank] for name, values in of_ranks.items()}}
    problem, steps = Problem(rows=sum(given['sizes'])), []
    module = problem.module(sampling=Sampling(
        given.get('batches', 2), given.get('updates'),
        problem.iterator(8) if given.get('own_data', True) else None))
    message = error_of(functools.partial(
        module.fit, shard_of(problem, given['sizes'], rank, 8), kvstore=kvstore,
        eval_metric='mse', arg_params=problem.arg_params(), num_epoch=2,
        batch_end_callback=steps.append))
    return message, len(steps)

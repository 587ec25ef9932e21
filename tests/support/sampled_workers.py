"""What the workers of the distributed tests do with sampled full gradients."""

import functools

from problems import Problem
from shards import error_of, shard_of, weights_of


def fit_sampled(kvstore, problem, sizes, batches, updates, num_epoch, optimizer, **arguments):
    """Train on the first batches of each shard; return weights and the number of snapshots."""
    problem = Problem(**problem)
    module = problem.module(full_grad_batches=batches, updates_per_snapshot=updates, **arguments)
    module.fit(shard_of(problem, sizes, kvstore.rank, 8), kvstore=kvstore, eval_metric='mse',
               arg_params=problem.arg_params(), optimizer_params=optimizer, num_epoch=num_epoch)
    return weights_of(module), module._snapshot.num_taken


def sampled_unlike(kvstore, of_ranks):
    """Call fit with arguments of each rank's own; return the error's message and the steps."""
    rank = kvstore.rank
    given = {'sizes': [16, 16], **{name: values[rank] for name, values in of_ranks.items()}}
    problem, steps = Problem(rows=sum(given['sizes'])), []
    module = problem.module(full_grad_batches=given.get('batches', 2),
                            updates_per_snapshot=given.get('updates'))
    message = error_of(functools.partial(
        module.fit, shard_of(problem, given['sizes'], rank, 8), kvstore=kvstore,
        eval_metric='mse', arg_params=problem.arg_params(), num_epoch=2,
        batch_end_callback=steps.append))
    return message, len(steps)

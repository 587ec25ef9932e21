"""What the workers of the distributed tests do with sampled full gradients."""

import functools

from problems import Problem
from shards import error_of, shard_of, weights_of


def fit_sampled(kvstore, problem, sizes, full_sizes, full_batch_sizes, batches, updates, num_epoch,
                optimizer):
    """Train on full gradients over data of each worker's own; return weights and snapshots."""
    problem, rank = Problem(**problem), kvstore.rank
    module = problem.module(full_grad_batches=batches, updates_per_snapshot=updates,
                            full_grad_data=shard_of(problem, full_sizes, rank,
                                                    full_batch_sizes[rank]))
    module.fit(shard_of(problem, sizes, rank, 8), kvstore=kvstore, eval_metric='mse',
               arg_params=problem.arg_params(), optimizer_params=optimizer, num_epoch=num_epoch)
    return weights_of(module), module._snapshot.num_taken


def sampled_unlike(kvstore, unlike):
    """Call fit with arguments of each rank's own; return the errors' messages and the steps."""
    rank, found = kvstore.rank, []
    for number, of_ranks in enumerate(unlike):
        given = {'sizes': [16, 16], **{name: values[rank] for name, values in of_ranks.items()}}
        problem = Problem(rows=sum(given['sizes']), weight={'name': 'w%d' % number},
                          bias={'name': 'b%d' % number})
        module = problem.module(
            full_grad_batches=given.get('batches', 2), updates_per_snapshot=given.get('updates'),
            full_grad_data=problem.iterator(8) if given.get('own_data', True) else None)
        steps = []
        message = error_of(functools.partial(
            module.fit, shard_of(problem, given['sizes'], rank, 8), kvstore=kvstore,
            eval_metric='mse', arg_params=problem.arg_params(), num_epoch=2,
            batch_end_callback=steps.append))
        found.append((message, len(steps)))
    return found

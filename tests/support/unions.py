"""What several workers must come to, in float64: as one process with the rows of all."""

import numpy as np

import full_gradients
from newton import outputs_at_optimum
from oracle import batches_of
from problems import assert_close


def assert_alike(of_ranks):
    """Check that all ranks have the same weights, to the bit."""
    for weights in of_ranks[1:]:
        for name, value in of_ranks[0].items():
            np.testing.assert_array_equal(weights[name], value, err_msg=name)


def full_gradient(problem, weights, batch_size):
    """Compute the float64 full gradient over all rows, in the units of a worker's batch."""
    return full_gradients.full_gradient(problem, {
        name: value.astype(np.float64) for name, value in weights.items()},
        np.arange(len(problem.features)), batch_size)


def batches_of_all(sizes, batch_size=8, filled_up=True):
    """Return the rows of each step of all workers in an epoch, the last ones as Module has them."""
    shards = [begin + np.array(batches_of(size, batch_size))
              for begin, size in zip(np.cumsum([0, *sizes]), sizes)]
    if not filled_up:
        shards = [[rows[rows >= batches[0][0] + batch_size * number]
                   for number, rows in enumerate(batches)] for batches in shards]
    return [np.concatenate(batches) for batches in zip(*shards)]


def train_on_union(problem, sizes, batch_size, num_epoch, update_freq, **settings):
    """Train in float64 as one process would on the union of the workers' batches."""
    return problem.svrg(len(sizes) * batch_size, **settings).fit(
        num_epoch, update_freq, batches=batches_of_all(sizes, batch_size))


def assert_module(results, problem, sizes, batch_size=8, alpha=1, wd=0., **given):
    """Check five epochs of `fit` with two from a snapshot to the next; return the weights."""
    at_snapshot, expected = (train_on_union(problem, sizes, batch_size, epochs, 2, alpha=alpha,
                                            wd=wd, **given) for epochs in (4, 5))
    norm = max(np.abs(value + wd * at_snapshot[name] * name.endswith('weight')).max()
               for name, value in full_gradient(problem, at_snapshot, 1).items())
    for result in results:
        assert_close(result['weights'], expected)
        if alpha and 'proximal' not in given:
            np.testing.assert_allclose(result['norm'], norm, rtol=1e-5)
    assert len({result['norm'] for result in results}) == 1
    return expected


def assert_blocks(results, problem, sizes, settings):
    """Check four epochs of `fit_gluon`."""
    svrg = problem.svrg(8 * len(sizes), **settings)
    for epoch in range(4):
        if epoch % 2 == 0:
            svrg.take_snapshot()
        for rows in batches_of_all(sizes, filled_up=False):
            svrg.step(rows)
    for result in results:
        assert_close(result['weights'], svrg.weights)


def assert_optimum(results, problem, wd, tol=1e-6):
    """Check that all have come to the optimum of all rows with 'newton_cg', alike."""
    assert_alike([result['weights'] for result in results])
    assert len({(result['norm'], result['epochs']) for result in results}) == 1
    assert all(result['has_converged'] and 0 < result['epochs'] < 50 for result in results)
    rows, weights = problem.features.astype('f4').astype('f8'), results[0]['weights']
    found = rows @ weights['fc_weight'].T.astype('f8') + weights['fc_bias']
    found, expected = (outputs - outputs.mean(axis=1, keepdims=True) for outputs in (
        found, outputs_at_optimum('softmax', rows, problem.targets, wd)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * tol * np.abs(expected).max())

"""The metric of the inputs as one matrix of all parameters, in float64."""

import numpy as np

from svrg_optimization.rate.metric import Block, Metric
from svrg_optimization.rate.moments import Moments


def moments_of(rows, kind='covariances'):
    """Return the Moments: covariances, or variances alone, or as many rows."""
    mean = rows.mean(axis=0)
    centred = (rows - mean) / np.sqrt(len(rows))
    return Moments(mean, {'covariances': centred.T @ centred, 'rows': centred,
                          'variances': np.square(centred).sum(axis=0)}[kind])


def block_of(rows, decays, axis=1, dtype='float64', is_invariant=False, **how):
    """Return the Block of a weight; with two decays a bias is joined."""
    return Block(['weight', 'bias'][:len(decays)], axis, moments_of(rows, **how), list(decays),
                 dtype, is_invariant)


def metric_of(block, multiplier=1., outputs=3):
    columns = len(block.mean)
    shapes = {'bias': (outputs,), 'other': (2, 2),
              'weight': (outputs, columns) if block.axis else (columns, outputs)}
    return Metric(shapes, {**dict.fromkeys(block.names, multiplier), 'other': 4.,
                           **({} if len(block.names) == 2 else {'bias': 9.})}, [block])


def dense(rows, decays):
    """Return M of one output."""
    inputs = np.column_stack([rows, np.ones((len(rows), len(decays) - 1))])
    return inputs.T @ inputs / len(rows) + np.diag(
        [decays[0]] * rows.shape[1] + list(decays[1:]))


def of_all_outputs(metric, of_output):
    """Return M of all parameters, in the order of a Metric's vectors."""
    matrix = np.diag(metric.vector({name: np.full(shape, 1 / metric.multipliers[name])
                                    for name, shape in metric.shapes.items()}))
    places, (block,) = metric.arrays(np.arange(metric.size)), metric.blocks
    weight = places['weight'] if block.axis else places['weight'].T
    for row, last in zip(weight, places['bias']):
        chosen = np.array([*row, last] if len(block.names) == 2 else row)
        matrix[np.ix_(chosen, chosen)] = of_output / metric.multipliers['weight']
    return matrix


def by_bfgs(matrix, pairs):
    """Return a Hessian after the updates of BFGS with pairs of a move and a change."""
    for s, y in pairs:
        turned = matrix @ s
        matrix = matrix + np.outer(y, y) / (s @ y) - np.outer(turned, turned) / (s @ turned)
    return matrix


def assert_moments(block, rows):
    """Compare the moments that a Block was made of with those of rows in float64."""
    for found, expected in zip(block.moments[:2], moments_of(rows)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())

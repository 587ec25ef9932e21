r"""The confirmation: how much flatter the objective may be than a quadratic model of it.

A snapshot's step to the optimum, :math:`d = -H g`, is right if H is the inverse of the Hessian A.
If :math:`\theta` is the smallest curvature of the objective beside that of the model, the smallest
eigenvalue of HA, the step that is left is :math:`A^{-1} g`, at most

.. math:: \|A^{-1} g\| \le \|H g\| + \left(\frac{1}{\theta} - 1\right)
          \sqrt{\lambda_{max}(H) \, g^T H g}.

This is the a posteriori bound of the contraction :math:`w \leftarrow w - H g`. It holds in the norm
of :math:`H^{-1}`, in which HA is symmetric, with eigenvalues of :math:`\theta` to 1; and a length
is at most :math:`\sqrt{\lambda_{max}(H)}` times that norm. Lanczos' method finds :math:`\theta`,
from a random vector of the covariance H, by a pass for each product with A [1]_. In the norm of
:math:`H^{-1}` a direction without curvature is about a part :math:`1 / \sqrt D` of such a vector of
D numbers, however long H makes it, and leaves as large a residual. So no further product is needed
where the residual is a twentieth of that: with a probability of 0.96 there is no such direction.
Each check also begins with the flattest direction of the one that has failed before, since some of
many random vectors would miss it. A curvature that is rounding of the gradients confirms nothing.

Among many numbers a few products do not come so far. But of a convex loss only parameters without a
weight decay have such directions, and they are few: products of these alone soon do.

References
----------
.. [1] J. Kuczyński and H. Woźniakowski, "Estimating the Largest Eigenvalue by the Power and
   Lanczos Algorithms with a Random Start", SIAM Journal on Matrix Analysis and Applications
   13(4), 1992.
"""

import math
from typing import NamedTuple

import numpy as np

from ..core.arrays import precision_of
from .constants import CHANCE, CHECKS, ROUGHLY, SHARP


class Curvature(NamedTuple):
    """The curvature that a check has found.

    Attributes
    ----------
    smallest : float
        A bound of θ from below: the smallest value that Lanczos' method finds without the length
        of its residual, or a third of it where few products leave a long one; 0 at least.
    is_resolved : bool
        Whether products with the Hessian are those of a symmetric matrix, not too large, and H has
        an inverse in float64.
    is_sharp : bool
        Whether no direction without curvature is likely.
    moves, changes : numpy.ndarray
        Directions, the flattest first, and the changes of the gradient along them.
    """

    smallest: float
    is_resolved: bool
    is_sharp: bool
    moves: np.ndarray
    changes: np.ndarray


def bound(pairs, step, smallest):
    """Return how far the optimum is at most, given the step by SecantPairs and θ."""
    error = math.sqrt(max(pairs.largest() * (step @ pairs.inverse()(step)), 0.))
    return float(np.linalg.norm(step)) + error * (1 / smallest - 1)


def flattest(nearby, pairs, sees, agree, seed=0):
    """Return the Curvature of a matrix beside that of SecantPairs.

    Parameters
    ----------
    nearby : Nearby
        Makes products with the Hessian.
    pairs : SecantPairs
        H.
    sees : callable
        Returns a vector without the directions that do not count.
    agree : callable
        As of an Objective.
    seed : int
        Of the random vector: pairs that were learned from one have the curvatures that it shows.
    """
    inverse_times = pairs.inverse()
    vector = sees(pairs.sample(np.random.RandomState(seed)))
    free = np.count_nonzero(vector)
    if not free:
        return Curvature(1., True, True, vector[None], vector[None])
    rows, products = np.zeros((2, 0, len(vector)))
    while True:
        rows, products = (np.vstack(both) for both in zip(
            (rows, products), nearby.product(vector / np.linalg.norm(vector), (
                vector @ inverse_times(vector)) / (vector @ vector))))
        of_model = rows @ np.array([inverse_times(row) for row in rows]).T
        values, vectors = np.linalg.eigh((of_model + of_model.T) / 2)
        if agree(not values[0] > precision_of(float) * values[-1]):
            return Curvature(0., False, False, rows, products)
        root = (vectors / np.sqrt(values)).T
        matrix = root @ (rows @ products.T) @ root.T
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        moves, changes = (vectors.T @ root @ all_of for all_of in (rows, products))
        smallest, largest, asymmetry = values[0], abs(values).max(), abs(matrix - matrix.T).max()
        seen = largest if smallest > 0 else max(-smallest, ROUGHLY * nearby.precision * largest)
        vector = sees(pairs.times(changes[0]) - smallest * moves[0])
        vector = vector - rows.T @ np.linalg.solve(of_model, rows @ inverse_times(vector))
        residual = math.sqrt(max(vector @ inverse_times(vector), 0.))
        flatter, is_other, may_hide, goes_on = agree(
            -max(smallest - residual, smallest / SHARP),
            not (largest <= ROUGHLY and asymmetry <= seen / ROUGHLY),
            residual > CHANCE * abs(smallest) / math.sqrt(free),
            residual > nearby.precision * largest)
        if is_other or not (may_hide and goes_on) or len(rows) == min(CHECKS, free):
            return Curvature(max(-flatter, 0.), not is_other, not may_hide, moves, changes)

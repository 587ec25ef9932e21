"""The flattest direction of a matrix beside that of secant pairs, against NumPy's eigenvalues."""

from types import SimpleNamespace

import numpy as np
import pytest

from dense_metric import by_bfgs
from svrg_optimization.rate.confirmation import bound, flattest
from svrg_optimization.rate.secant_pairs import SecantPairs

SIZE, GAMMA = 12, 0.3
ROOT = np.random.RandomState(1).normal(size=(SIZE, SIZE))
TURN = np.linalg.qr(ROOT)[0]
MOVES = np.random.RandomState(2).normal(size=(3, SIZE))


class Model:
    """SecantPairs, their inverse as a matrix, and products with another one, which are counted."""

    def __init__(self, number=3):
        changes = [(ROOT @ ROOT.T + 3 * np.eye(SIZE)) @ move for move in MOVES[:number]]
        self.pairs = SecantPairs(SIZE, GAMMA, SIZE)
        for pair in zip(MOVES, changes):
            self.pairs.add(*pair)
        self.pairs.gamma = GAMMA
        self.matrix = by_bfgs(np.eye(SIZE) / GAMMA, zip(MOVES, changes))
        self.root, self.count = np.linalg.cholesky(self.matrix), 0

    def with_curvatures(self, values):
        """Return a matrix that has these curvatures beside that of the pairs."""
        return self.root @ (TURN * values) @ TURN.T @ self.root.T

    def flattest(self, product, sees=lambda vector: vector, seed=0, precision=1e-8):
        def counted(vector, _):
            self.count += 1
            return vector, product(vector)

        self.count = 0
        return flattest(SimpleNamespace(product=counted, precision=precision), self.pairs, sees,
                        lambda *numbers: numbers if len(numbers) > 1 else numbers[0], seed)


@pytest.mark.parametrize('number', [0, 3])
@pytest.mark.parametrize('least', [0.9, 0.5, 0.05, 0.])
def test_the_bound_is_below_the_smallest_curvature_and_near_it(number, least):
    """Most curvatures are those of the pairs, as near an optimum."""
    model = Model(number)
    matrix = model.with_curvatures([least, *np.linspace(0.95, 1.05, SIZE - 2), 1.2])
    found = model.flattest(lambda vector: matrix @ vector)
    assert 0.9 * least <= found.smallest <= least * (1 + 1e-9) + 1e-6 * (not least)
    assert found.is_resolved and found.is_sharp == (least > 0) and 1 < model.count <= 6
    np.testing.assert_allclose(found.changes[0], matrix @ found.moves[0], rtol=1e-9, atol=1e-9)
    # The curvature along the move is not below the smallest, and near it.
    curvature = found.moves[0] @ found.changes[0] / (found.moves[0] @ model.matrix @ found.moves[0])
    assert least - 1e-9 <= curvature <= 1.01 * least + 1e-6 * (not least)


@pytest.mark.parametrize('number', [0, 3])
@pytest.mark.parametrize('error', [0., 1e-3])  # far less than a flat direction leaves
def test_the_matrix_of_the_pairs_needs_one_product(number, error):
    model = Model(number)
    matrix = model.with_curvatures(1 + error * np.linspace(-1, 1, SIZE))
    found = model.flattest(lambda vector: matrix @ vector)
    assert model.count == 1 and found.is_resolved
    assert found.smallest == pytest.approx(1., abs=2 * error + 1e-6)


def test_products_end_where_they_cannot_tell_more():
    """Any matrix of two numbers is known after two, and more than six are not made."""
    wide = Model()
    matrix = wide.with_curvatures(np.linspace(0.3, 2, SIZE))
    found = wide.flattest(lambda vector: matrix @ vector)
    assert wide.count == 6 and 0 <= found.smallest <= 0.3 and not found.is_sharp
    few, first = Model(0), np.arange(SIZE) < 2
    found = few.flattest(lambda vector: vector * np.linspace(0.2, 2, SIZE) / GAMMA,
                         lambda vector: first * vector)
    assert few.count == 2 and found.smallest == pytest.approx(0.2, abs=1e-6)
    assert found.is_sharp


def test_a_direction_that_does_not_count_is_left_out():
    model, others = Model(0), np.arange(SIZE) != 4
    matrix = np.eye(SIZE) + 0.1 * np.outer(ROOT[0], others * ROOT[0]) / (ROOT[0] @ ROOT[0])
    matrix[4] = matrix[:, 4] = 0.09  # others have parts along it
    matrix[4, 4] = 0.1
    of_all, of_others = (np.linalg.eigvalsh(each)[0] for each in (
        matrix, matrix[np.ix_(others, others)]))
    assert of_all < 0.05 and of_others == pytest.approx(1.)
    for sees, expected in ((lambda vector: vector, of_all),
                           (lambda vector: others * vector, of_others)):
        found = model.flattest(lambda vector: matrix @ vector / GAMMA, sees)
        assert found.smallest == pytest.approx(expected, abs=0.02) and found.is_resolved
    assert found.moves[0, 4] == 0


def skew(size):
    matrix = np.random.RandomState(3).normal(size=(SIZE, SIZE))
    return size * (matrix - matrix.T)


@pytest.mark.parametrize('number', [0, 3])
@pytest.mark.parametrize('kind, is_resolved', [
    ('the same', True), ('unsymmetric', False), ('too steep', False), ('by chance', False),
    ('not finite', False)])
def test_products_that_are_of_no_hessian_are_told(number, kind, is_resolved):
    model, rng = Model(number), np.random.RandomState(4)
    product = {
        'the same': lambda vector: model.matrix @ vector,
        'unsymmetric': lambda vector: (model.matrix + skew(2.)) @ vector,
        'too steep': lambda vector: 20 * model.matrix @ vector,
        'by chance': lambda vector: model.matrix @ vector + 3 * rng.normal(size=SIZE),
        'not finite': lambda vector: vector * np.nan}[kind]
    with np.errstate(all='ignore'):
        assert model.flattest(product).is_resolved is is_resolved


@pytest.mark.parametrize('number', [0, 3])
def test_the_bound_of_the_distance_holds_and_is_near_it(number):
    """Also for the gradient that the pairs miss most, where the way over θ is too short."""
    model = Model(number)
    matrix = model.with_curvatures([0.2, *np.linspace(0.95, 1.05, SIZE - 1)])
    smallest = model.flattest(lambda vector: matrix @ vector).smallest
    worst = model.matrix @ np.linalg.svd(np.linalg.solve(matrix, model.matrix))[2][0]
    for gradient in [*np.eye(SIZE), worst]:
        way, far = -model.pairs.times(gradient), np.linalg.norm(np.linalg.solve(matrix, gradient))
        at_most = bound(model.pairs, way, smallest)
        assert far <= at_most * (1 + 1e-9)
    assert far >= (0.4 if number else 0.99) * at_most
    assert not number or far > 1.1 * np.linalg.norm(way) / smallest


def test_what_is_flat_in_the_model_is_found_from_each_random_vector():
    """But for the matrix of the pairs a part of 1e-3 of the usual one would have it."""
    model, flat = Model(0), TURN[:, 0]
    model.pairs.add(flat, 1e-6 * flat)
    model.pairs.gamma = GAMMA
    matrix = (TURN * [1e-8, *np.linspace(0.9, 1.1, SIZE - 1) / GAMMA]) @ TURN.T
    for seed in range(100):
        assert model.flattest(lambda vector: matrix @ vector, seed=seed).smallest <= 0.0101


def test_where_products_cannot_tell_more_a_flat_direction_may_hide():
    """Unused outputs: their weights have the curvature of a small decay, their biases have none.

    A random vector has no part of a direction with a probability of 0.04.
    """
    model = Model(0)
    matrix = model.with_curvatures([0., *np.full(5, 5e-4), *np.ones(SIZE - 6)])
    found = [model.flattest(lambda vector: matrix @ vector, seed=seed, precision=3e-4)
             for seed in range(100)]
    assert sum(each.is_sharp for each in found) <= 4
    assert min(each.smallest for each in found if not each.is_sharp) > 1e-5

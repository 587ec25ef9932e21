"""Grids of parameters, thinned."""

import itertools

import pytest


def in_pairs(grid):
    """Parametrize a test so that each two values of two parameters meet in some case.

    This takes far fewer cases than the product of the values. `grid` maps a name, or
    several with a comma between them, to values.
    """
    values = [[value if ',' in name else (value,) for value in values]
              for name, values in grid.items()]
    product = list(itertools.product(*(range(len(of_one)) for of_one in values)))
    left = {pair for case in product for pair in itertools.combinations(enumerate(case), 2)}
    chosen = []
    while left:
        chosen.append(max(product, key=lambda case: len(
            left.intersection(itertools.combinations(enumerate(case), 2)))))
        left.difference_update(itertools.combinations(enumerate(chosen[-1]), 2))
    return pytest.mark.parametrize(', '.join(grid), [
        sum((of_one[number] for of_one, number in zip(values, case)), ()) for case in chosen])

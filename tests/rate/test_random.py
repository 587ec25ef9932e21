"""Gamma where each batch has another curvature, as with Dropout."""

import numpy as np
import pytest

from svrg_optimization.rate.metric import Metric
from svrg_optimization.rate.random import Random
from svrg_optimization.rate.regime import Move

METRIC = Metric({'w': (2,)}, {'w': 1.})


def move_of(curvature):
    s = np.array([0.6, 0.8])
    return Move(s, curvature * s, 1., curvature, curvature ** 2, 0.)


@pytest.mark.parametrize('has_noise, curvatures, expected', [
    (True, [4.], 0.25), (True, [4., 0.1], 0.275), (True, [4., 0.1, 0.1], 0.3025),
    (True, [4., 8.], 0.125), (True, [4., 3.9], 1 / 3.9), (False, [4., 0.1], 10.)])
def test_gamma_grows_by_a_tenth_at_most_where_batches_differ(has_noise, curvatures, expected):
    regime = Random(METRIC, 'float32')
    regime.has_noise = has_noise
    for curvature in curvatures:
        regime.learn(move_of(curvature))
    assert regime.pairs.gamma == pytest.approx(expected)
    assert not len(regime.pairs)
    assert regime.rate(0.9, 10, 10) == pytest.approx(expected / 10)

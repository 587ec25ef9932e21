"""The tutorial's two lines that scale the features are right for any column."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'tutorial.md'


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('constant', [0.0, 0.1, -1e-5, 1e6 + 0.1])
def test_constant_columns_become_zero_and_others_have_variance_one(dtype, constant):
    lines = re.search(r'^mean, deviation = .*?(?=^print)', PAGE.read_text(encoding='utf-8'),
                      re.MULTILINE | re.DOTALL)[0]
    varied = np.random.RandomState(0).normal(1000, 3, size=1000)
    rows = np.stack([np.full(1000, constant), varied], axis=1).astype(dtype)
    namespace = {'rows': rows, 'new_rows': rows[:10]}
    exec(lines, namespace)
    scaled = namespace['rows']
    assert scaled.dtype == 'float32' and namespace['new_rows'].shape == (10, 2)
    np.testing.assert_allclose(scaled[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(scaled[:, 1].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(scaled[:, 1].std(), 1, rtol=1e-5)

"""The first script scales any column rightly; its way leads to the optimum of other data."""

import csv
import re
from io import StringIO

import mxnet as mx
import numpy as np
import pytest

from pages import DOCS, blocks_of, text_of


def scaled(rows, new_rows):
    """Return both as the lines of the page scale them."""
    lines = re.search(r'^mean, deviation = .*?(?=^print)', text_of(DOCS / 'getting-started.md'),
                      re.MULTILINE | re.DOTALL)[0]
    namespace = {'rows': rows, 'new_rows': new_rows}
    exec(lines, namespace)
    return namespace['rows'], namespace['new_rows']


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('constant', [0.0, 0.1, -1e-5, 1e6 + 0.1])
def test_constant_columns_become_zero_and_others_have_variance_one(dtype, constant):
    varied = np.random.RandomState(0).normal(1000, 3, size=1000)
    rows = np.stack([np.full(1000, constant), varied], axis=1).astype(dtype)
    first, second = scaled(rows, rows[:10])
    assert first.dtype == 'float32' and second.shape == (10, 2)
    np.testing.assert_allclose(first[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(first[:, 1].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(first[:, 1].std(), 1, rtol=1e-5)


@pytest.mark.parametrize('new_rows', [
    'work,income,born\nfarmer,"$9,000",2000-01-02\n',  # fewer categories, other places
    'born,income,work\n1950-01-01,,pilot\n,"$1",baker\n,,clerk\n',  # as many as before
    'born,income,work\n,,7\n,,8\n'],  # columns without a value, numbers for names
    ids=['fewer', 'as many', 'empty'])
def test_new_rows_of_a_table_have_the_columns_and_medians_of_the_first(new_rows):
    pytest.importorskip('pandas', reason='needs pandas')
    namespace = {'mx': mx, 'np': np, 'SVRGModule': FakeModule, 'symbol': None, 'settings': {}}
    first, second = blocks_of(DOCS / 'getting-started.md')[-2:]
    exec(first, namespace)
    shown, = re.findall("StringIO\\('''.*?'''\\)", second, re.DOTALL)
    exec(second.replace(shown, 'StringIO(text)'), {**namespace, 'text': new_rows})
    expected = []
    for row in csv.DictReader(StringIO(new_rows)):
        born, income = row['born'] or '1984-02-29', row['income'] or '$52,000'
        expected.append([(np.datetime64(born) - np.datetime64('2000-01-01')).astype(int),
                         float(re.sub('[$,]', '', income)),
                         *(row['work'] == each for each in ('clerk', 'farmer', 'nurse'))])
    np.testing.assert_array_equal(namespace['module'].seen, expected)


class FakeModule:
    """A module that learns nothing, and keeps the rows that it predicts."""

    def __init__(self, *_, **__):
        self.seen = None

    def fit(self, *_, **__):
        """Do nothing."""

    def predict(self, data):
        """Keep the rows; return the first class for each."""
        self.seen = np.concatenate([batch.data[0].asnumpy() for batch in data])
        return mx.nd.zeros((len(self.seen), 2))

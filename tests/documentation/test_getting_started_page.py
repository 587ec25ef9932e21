"""The first script scales any column rightly; its way leads to the optimum of other data."""

import csv
import re
import warnings
from io import StringIO

import mxnet as mx
import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression

from linear_models import Problem, by_module
from pages import DOCS, blocks_of, text_of
from svrg_optimization.proximal import L1


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


@pytest.mark.slow
@pytest.mark.parametrize('penalty', ['l1', 'l2'])
def test_it_reaches_the_optimum_of_scikit_learn_on_other_data(penalty):
    rows, kinds = load_wine(return_X_y=True)
    rows, _ = scaled(rows, rows)
    strength, l1 = 1 / len(rows), penalty == 'l1'

    def objective(weight, bias):
        margins = rows.astype('float64').dot(weight.T) + bias
        losses = np.log(np.exp(margins).sum(axis=1)) - margins[np.arange(len(rows)), kinds]
        size = np.abs(weight).sum() if l1 else (weight ** 2).sum() / 2
        return losses.mean() + strength * size

    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', "'penalty' was deprecated")
        warnings.filterwarnings('ignore', 'Inconsistent values: penalty')
        theirs = LogisticRegression(tol=1e-10, max_iter=100000, **(
            {'penalty': 'l1', 'solver': 'saga'} if l1 else {})).fit(rows.astype('float64'), kinds)
    problem = Problem('softmax', rows, kinds, 0 if l1 else strength, batch=32, shuffle=True)
    found = by_module(problem, 1000, 3e-6, proximal=L1(strength) if l1 else None)
    assert objective(found.weight, found.bias) - objective(theirs.coef_, theirs.intercept_) < 1e-6

"""Metrics keep their sums in float64 on each NumPy, as on NumPy 1."""

import mxnet as mx
import numpy as np
import pytest

RNG = np.random.RandomState(0)
LABELS = mx.nd.array(RNG.randint(0, 2, 30))
CLASSES = mx.nd.array(RNG.dirichlet([1, 1], 30))
TARGETS, PREDICTIONS = mx.nd.array(RNG.normal(size=(30, 1))), mx.nd.array(RNG.normal(size=(30, 1)))
OF_CLASSES = ['acc', 'ce', 'nll_loss', 'f1', 'mcc', 'pcc', mx.metric.Perplexity(None),
              mx.metric.TopKAccuracy(2), mx.metric.F1(average='micro'),
              mx.metric.MCC(average='micro')]
OF_NUMBERS = ['mse', 'mae', 'rmse', 'loss', 'pearsonr', mx.metric.np(lambda x, y: abs(x - y).max())]
CASES = ([(metric, LABELS, CLASSES) for metric in OF_CLASSES]
         + [(metric, TARGETS, PREDICTIONS) for metric in OF_NUMBERS])


@pytest.mark.parametrize('metric, label, prediction', CASES)
def test_many_equal_batches_have_the_value_of_one(metric, label, prediction):
    metric = mx.metric.create([metric])
    metric.update([label], [prediction])
    (_, [of_one]), [inner] = metric.get(), metric.metrics
    for _ in range(199):
        metric.update([label], [prediction])
    for _, [value] in (metric.get(), metric.get_global()):
        np.testing.assert_allclose(value, of_one, rtol=1e-12)
    assert isinstance(inner.sum_metric, float)
    assert isinstance(inner.global_sum_metric, float)
    metric.reset()
    assert np.isnan(metric.get()[1][0])


def test_words_are_counted_beyond_what_float32_can():
    metric = mx.metric.Perplexity(ignore_label=1)
    for words in (3, 2 ** 24 + 6):
        metric.update([mx.nd.array([0, 0, 0, 1])], [mx.nd.ones((4, 2)) / 2])
        assert metric.num_inst == words
        metric.num_inst += 2 ** 24


def test_a_metric_of_ones_own_keeps_its_sums():
    class Own(mx.metric.EvalMetric):
        def reset(self):
            super().reset()
            self.total, self.sums = 0.0, [0.0, 0.0]

        def update(self, labels, preds):
            self.total += preds[0].asscalar()

    metric = Own('own')
    for _ in range(200):
        metric.update(None, [mx.nd.array([0.09])])
    np.testing.assert_allclose(metric.total, 200 * float(np.float32(0.09)), rtol=1e-12)
    assert metric.sums == [0.0, 0.0]

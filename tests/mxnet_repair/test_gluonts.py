"""GluonTS 0.17 still has models of MXNet: they train and predict."""

import mxnet as mx
import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore'), pytest.mark.skipif(
    np.__version__ >= '2', reason='GluonTS 0.17 needs NumPy 1')]


@pytest.mark.parametrize('name, epochs, options', [
    ('SimpleFeedForwardEstimator', 16, {}),
    ('DeepAREstimator', 10, {'freq': 'h', 'num_layers': 1, 'num_cells': 32, 'dropout_rate': 0})])
def test_a_model_learns_the_season_of_a_series(name, epochs, options):
    reason = 'without GluonTS: make gluonts installs it'
    models = pytest.importorskip('gluonts.mx', reason=reason)
    dataset = pytest.importorskip('gluonts.dataset.common', reason=reason)
    callback = pytest.importorskip('gluonts.mx.trainer.callback', reason=reason)
    np.random.seed(0)
    mx.random.seed(0)
    hours, history = np.arange(8 * 24), callback.TrainingHistory()
    series = 2 + np.sin(2 * np.pi * hours / 24) + 0.05 * np.random.normal(size=hours.size)
    known = dataset.ListDataset([{'start': '2024-01-01', 'target': series[:-12]}], freq='h')
    trainer = models.Trainer(epochs=epochs, num_batches_per_epoch=20, learning_rate=0.01,
                             callbacks=[history])
    estimator = getattr(models, name)(prediction_length=12, context_length=12, trainer=trainer,
                                      **options)
    forecast, = estimator.train(known).predict(known)
    losses = np.array(history.loss_history, float)
    assert losses.size == epochs and losses[-1] < losses[0] - 1
    assert forecast.samples.shape == (100, 12)
    # A constant is off by 0.6.
    assert np.abs(forecast.mean - series[-12:]).mean() < 0.25

"""Runs with a found rate that are resumed at any epoch end on the bits of unbroken ones."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from svrg_optimization import BarzilaiBorwein, SVRGModule, SVRGTrainer

RNG = np.random.RandomState(5)
ROWS = RNG.normal(size=(60, 6)).astype('float32') * np.logspace(0, 1.5, 6, dtype='float32')
LABELS = (ROWS @ RNG.normal(size=6) + RNG.logistic(size=60) > 0).astype('float32')
ROWS[:2] *= 40  # so that it goes back sometimes
OPTIMIZER = {'momentum': 0.9, 'wd': 1e-3}
EPOCHS = 16


def iterator():
    return mx.io.NDArrayIter(ROWS, LABELS, 10, label_name='label')


def fit(module, begin, end, rule, **kwargs):
    module.fit(iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end, optimizer='nag',
               optimizer_params={**OPTIMIZER, 'lr_scheduler': rule}, initializer=mx.init.Zero(),
               **kwargs)
    return [value.asnumpy() for value in module.get_params()[0].values()]


def new_module(contexts=mx.cpu()):
    scores = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, name='fc')
    symbol = mx.sym.LogisticRegressionOutput(scores, mx.sym.Variable('label'))
    return SVRGModule(symbol, label_names=('label',), update_freq=1, context=contexts)


def assert_same(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
@pytest.mark.parametrize('contexts', [
    mx.cpu(), pytest.param([mx.cpu(0), mx.cpu(1)], marks=pytest.mark.slow)])
def test_module_resumed_after_each_epoch(tmp_path, contexts):
    prefix, rule = str(tmp_path / 'model'), BarzilaiBorwein()
    module, pairs = new_module(contexts), []
    expected = fit(module, 0, EPOCHS, rule, epoch_end_callback=[
        mx.callback.module_checkpoint(module, prefix, 1, True),
        lambda *_: pairs.append(len(rule.moves.moves))])
    assert rule.ways_back and max(pairs) >= 2  # otherwise nothing is tested
    for stop in range(1, EPOCHS):
        resumed, other = SVRGModule.load(prefix, stop, True, label_names=('label',),
                                         context=contexts), BarzilaiBorwein()
        assert_same(fit(resumed, stop, EPOCHS, other), expected)
        assert (other.ways_back, other.rate, other.best) == (rule.ways_back, rule.rate, rule.best)


def test_module_resumed_between_a_snapshot_and_its_jump(tmp_path):
    def steps(module):
        for batch in iterator():
            module.forward_backward(batch)
            module.update()
        return [value.asnumpy() for value in module.get_params()[0].values()]

    prefix, module = str(tmp_path / 'model'), new_module()
    fit(module, 0, 1, BarzilaiBorwein())
    assert module._snapshot.jump is None  # after its last snapshot
    steps(module)
    module.update_full_grads(iterator())
    assert module._snapshot.jump is not None
    at_snapshot = [value.asnumpy() for value in module.get_params()[0].values()]
    module.save_checkpoint(prefix, 1, True)
    assert_same([value.asnumpy() for value in module.get_params()[0].values()], at_snapshot)
    resumed = SVRGModule.load(prefix, 1, True, label_names=('label',))
    resumed.bind(iterator().provide_data, iterator().provide_label)
    resumed.init_optimizer(optimizer='nag', optimizer_params={
        **OPTIMIZER, 'lr_scheduler': BarzilaiBorwein()})
    expected = steps(module)
    assert_same(steps(resumed), expected)
    assert module._snapshot.jump is None
    plain = SVRGModule.load(prefix, 1, True, label_names=('label',))
    plain.bind(iterator().provide_data, iterator().provide_label)
    plain.init_optimizer(optimizer='nag', optimizer_params={
        **OPTIMIZER, 'lr_scheduler': BarzilaiBorwein()})
    plain._snapshot.jump = None
    assert any((one != other).any() for one, other in zip(steps(plain), expected))


def new_trainer():
    net, loss = gluon.nn.Dense(1, in_units=6, prefix='fc_'), gluon.loss.SigmoidBCELoss()
    net.initialize(mx.init.Constant(1))
    net.bias.wd_mult = 0
    return net, SVRGTrainer(net.collect_params(), 'nag', {
        **OPTIMIZER, 'lr_scheduler': BarzilaiBorwein()},
        objective=lambda data, label: loss(net(data), label))


@pytest.mark.filterwarnings('ignore:the learning rate was too large')
def test_trainer_resumed_after_each_epoch(tmp_path):
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(ROWS, LABELS), 10)

    def train(net, trainer, begin, saves=False):
        for epoch, batches in enumerate(trainer.epochs(data, EPOCHS, 1, begin_epoch=begin), begin):
            for rows, labels in batches:
                trainer.backward(rows, labels)
                trainer.step(len(rows))
            if saves:
                net.save_parameters(str(tmp_path / ('%d.params' % (epoch + 1))))
                trainer.save_states(str(tmp_path / ('%d.states' % (epoch + 1))))
        return [param.data().asnumpy() for param in net.collect_params().values()]

    net, trainer = new_trainer()
    expected = train(net, trainer, 0, saves=True)
    assert trainer._optimizer.lr_scheduler.ways_back
    for stop in range(1, EPOCHS):
        net, trainer = new_trainer()
        net.load_parameters(str(tmp_path / ('%d.params' % stop)))
        trainer.load_states(str(tmp_path / ('%d.states' % stop)))
        assert_same(train(net, trainer, stop), expected)

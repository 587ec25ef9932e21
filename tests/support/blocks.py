"""The problems of the tests as Gluon blocks, and loops that train them."""

import warnings

import mxnet as mx
import numpy as np
from mxnet import gluon

import oracle
from problems import TWO_DEVICES, Problem
from stepping import SideBySide
from svrg_optimization.gluon import SVRGTrainer

SETTINGS = {'learning_rate': 0.2, 'momentum': 0.5, 'wd': 0.01}
BIAS = {'decayed': ('weight', 'bias')}  # Gluon decays both


def as_blocks_take(values, dtype='float32'):
    """Return an array of the kind that blocks take: after ``set_np`` an mx.np array."""
    return (mx.np if mx.util.is_np_array() else mx.nd).array(values, dtype=dtype)


class Blocks(Problem):
    """A problem with its network as a Gluon block."""

    def net(self, context=mx.cpu(), hybridized=None, extra=()):
        """Return a new network with the problem's weights."""
        net = gluon.nn.HybridSequential(prefix='')
        if 'hidden_weight' in self.weights:
            net.add(gluon.nn.Dense(5, activation='tanh', in_units=4, prefix='hidden_'))
        outputs, inputs = self.weights['fc_weight'].shape
        net.add(*extra, gluon.nn.Dense(outputs, in_units=inputs, prefix='fc_'))
        net.initialize(ctx=context)
        for name, param in net.collect_params().items():
            if name in self.weights:
                param.set_data(as_blocks_take(self.weights[name]))
        if hybridized is not None:
            net.hybridize(**hybridized)
        return net

    def loss(self):
        if len(self.weights['fc_bias']) == 1:
            return gluon.loss.L2Loss()
        return gluon.loss.SoftmaxCrossEntropyLoss()

    def loader(self, batch_size=10, dtype='float32', **kwargs):
        """Return a DataLoader, the same one again: to make one takes MXNet 0.1 s, in gc.collect."""
        arrays = self.features.astype(dtype), self.targets.astype(dtype)
        key = (batch_size, *(array.tobytes() for array in arrays), *sorted(kwargs.items()))
        loaders = self.__dict__.setdefault('loaders', {})
        if key not in loaders or kwargs.get('last_batch') == 'rollover':  # which has left rows
            loaders[key] = gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), batch_size,
                                                 **kwargs)
        return loaders[key]

    def trainer(self, net, cls=SVRGTrainer, optimizer='sgd', settings=None, **kwargs):
        if cls is SVRGTrainer and 'objective' not in kwargs:
            loss = self.loss()
            kwargs['objective'] = lambda data, label: loss(net(data), label)
        settings = dict(SETTINGS if settings is None else settings)
        return cls(net.collect_params(), optimizer, settings, **kwargs)

    def twin(self, batch_size=10, settings=None, **kwargs):
        """Return SVRG in float64 with the settings of `trainer`."""
        return self.svrg(batch_size, **{**(settings or SETTINGS), **BIAS, **kwargs})

    def oracle(self, epochs):
        """Return the float64 weights after some epochs of `train`; the last batch is shorter."""
        rows = np.arange(len(self.features))
        return self.twin().fit(epochs, 2, batches=[
            rows[begin:begin + 10] for begin in range(0, len(rows), 10)])


class Training(SideBySide):
    """A trainer and its float64 twin."""

    def __init__(self, problem, contexts=None, twin=(), net=None, **given):
        self.problem = problem
        self.net = net or problem.net(contexts or mx.cpu())
        self.trainer = self.trains = problem.trainer(self.net, **given)
        self.svrg = problem.twin(**dict(twin))

    def snapshot(self):
        self.trainer.update_full_grads(self.problem.loader())
        self.svrg.take_snapshot()

    def batches(self):
        """Yield the inputs of each step of an epoch, and their rows."""
        for batch in self.trainer.training_batches(self.problem.loader()):
            yield batch, self.problem.rows_of(batch[0] if isinstance(batch[0], list) else batch[:1])

    def backward(self, batch):
        return self.trainer.backward(*batch)

    def step(self, rows, batch_size=10):
        self.trainer.step(batch_size)
        self.svrg.step(rows)

    def check(self):
        assert_weights(self.net, self.svrg.weights)

    def full_gradient(self):
        """Return the mean over the rows, in units of a batch of the twin."""
        full = self.trainer._svrg.snapshot.full_gradient
        return {name: total.asnumpy() * self.svrg.batch_size / full.batch_size
                for name, total in full.totals().items()}

    def gradients(self):
        return {param.name: sum(gradient.asnumpy() for gradient in param.list_grad())
                for param in self.net.collect_params().values()}


def train(trainer, loader, epochs, update_freq=2, batch_size=10, begin=0, contexts=None):
    """Train as the docstring of SVRGTrainer says; the scale is that of whole batches."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'batch_size of step is')  # of a short last batch
        for epoch in range(begin, epochs):
            if epoch % update_freq == 0 and hasattr(trainer, 'update_full_grads'):
                trainer.update_full_grads(loader)
            for batch in loader:
                if contexts:
                    batch = [gluon.utils.split_and_load(array, contexts, even_split=False)
                             for array in batch]
                trainer.backward(*batch)
                trainer.step(batch_size)


def train_epochs(trainer, data, *epochs, **given):
    """Train as the page on Gluon says."""
    for batches in trainer.epochs(data, *epochs, **given):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(sum(map(len, batch[0])) if isinstance(batch[0], list) else len(batch[0]))


def train_plain(trainer, net, loss, loader, epochs, batch_size=10):
    """Train as everybody does with gluon.Trainer."""
    for _ in range(epochs):
        for data, label in loader:
            with mx.autograd.record():
                value = loss(net(data), label)
            value.backward()
            trainer.step(batch_size)


def weights_of(net):
    return {name: param.data(param.list_ctx()[0]).asnumpy()
            for name, param in net.collect_params().items()}


def assert_weights(net, expected, tolerance=1e-5):
    found = weights_of(net)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance,
                                   err_msg=name)


__all__ = ['TWO_DEVICES', 'Blocks', 'Training', 'as_blocks_take', 'assert_weights', 'oracle',
           'train', 'train_epochs', 'train_plain', 'weights_of']

"""Linear models that are trained to the end by each front end."""

import dataclasses
import typing

import mxnet as mx
import numpy as np
from mxnet import gluon

from blocks import train_epochs
from svrg_optimization import SVRGModule, SVRGTrainer


def made(loss):
    """Return the loss of one output as a layer of symbols, and as a function of arrays."""
    def of(library):
        return lambda outputs, labels: loss(
            library, library.reshape(outputs, (-1,)), library.reshape(labels, (-1,)))
    return lambda outputs, labels: mx.sym.MakeLoss(of(mx.sym)(outputs, labels)), of(mx.nd)


# The layer of a Module and the loss of Gluon.
LOSSES = {
    'squares': (mx.sym.LinearRegressionOutput, gluon.loss.L2Loss()),
    'made squares': made(lambda library, outputs, labels: (outputs - labels) ** 2 / 2),
    'logistic': (mx.sym.LogisticRegressionOutput, gluon.loss.SigmoidBCELoss()),
    'softmax': (mx.sym.SoftmaxOutput, gluon.loss.SoftmaxCELoss()),
    **{name: made(loss) for name, loss in {
        'poisson': lambda F, z, y: F.exp(z) - y * z, 'gamma': lambda F, z, y: z + y * F.exp(-z),
        'huber': lambda F, z, y: F.smooth_l1(z - y, scalar=1),
        'absolute': lambda F, z, y: F.abs(z - y),
        'quantile': lambda F, z, y: F.maximum(0.8 * (y - z), 0.2 * (z - y)),
        'hinge': lambda F, z, y: F.relu(1 - z * (2 * y - 1)),
        'squared hinge': lambda F, z, y: F.square(F.relu(1 - z * (2 * y - 1)))}.items()}}


@dataclasses.dataclass
class Problem:
    """A loss of a linear layer; with `dot` the layer is mx.sym.dot in a Module."""

    loss: str
    rows: np.ndarray
    targets: np.ndarray
    wd: float = 0.
    dtype: str = 'float32'
    batch: int = 50
    bias: bool = True
    shuffle: bool = False
    stype: str = 'default'
    dot: bool = False
    weight_stype: str = 'default'
    num_outputs: int = 2  # of a softmax at least

    @property
    def outputs(self):
        if self.loss == 'softmax':
            return max(self.num_outputs, int(self.targets.max()) + 1)
        return self.targets.shape[1] if self.targets.ndim == 2 else 1

    def symbol(self):
        data, label = mx.sym.Variable('data', stype=self.stype), mx.sym.Variable('label')
        if self.dot:
            scores = mx.sym.dot(data, mx.sym.Variable(
                'fc_weight', shape=(self.rows.shape[1], self.outputs), stype=self.weight_stype))
            if self.bias:
                scores = mx.sym.broadcast_add(scores, mx.sym.Variable(
                    'fc_bias', shape=(self.outputs,)))
        else:
            scores = mx.sym.FullyConnected(data, num_hidden=self.outputs, no_bias=not self.bias,
                                           name='fc')
        return LOSSES[self.loss][0](scores, label)

    def iterator(self, **given):
        rows, targets = (mx.nd.array(each, dtype=self.dtype) for each in (self.rows, self.targets))
        if self.stype == 'csr':
            given['last_batch_handle'] = 'discard'
        return mx.io.NDArrayIter(rows.tostype(self.stype), targets, self.batch, self.shuffle,
                                 label_name='label', **given)

    def loader(self, **given):
        """Return batches for Gluon: a list, which is faster than a DataLoader, where it does."""
        arrays = [mx.nd.array(each, dtype=self.dtype) for each in (self.rows, self.targets)]
        if self.shuffle or given:
            return gluon.data.DataLoader(gluon.data.ArrayDataset(
                *(array.asnumpy() for array in arrays)), self.batch, self.shuffle, **given)
        return [(arrays[0][begin:begin + self.batch].tostype(self.stype),
                 arrays[1][begin:begin + self.batch])
                for begin in range(0, len(self.rows), self.batch)]


class Trained(typing.NamedTuple):
    """What has trained, and its weight and bias in float64."""

    by: object
    weight: np.ndarray
    bias: np.ndarray


def by_module(problem, epochs=100, tol=1e-5, update_freq=2, optimizer='newton_cg', params=(),
              proximal=None, data=None, initializer=mx.init.Uniform(0.01), start=None,
              kvstore='local', **settings):
    module = SVRGModule(problem.symbol(), label_names=('label',), update_freq=update_freq, tol=tol,
                        proximal=proximal and {'fc_weight': proximal}, **settings)
    module.fit(data or problem.iterator(), eval_metric=[], num_epoch=epochs, optimizer=optimizer,
               kvstore=kvstore, initializer=initializer, arg_params=start,
               optimizer_params={'wd': problem.wd, **dict(params)})
    found = {name: value.tostype('default').asnumpy().astype('float64')
             for name, value in module.get_params()[0].items()}
    weight = found['fc_weight'].T if problem.dot else found['fc_weight']
    return Trained(module, weight, found.get('fc_bias', 0.))


def net_of(problem, initializer, context=mx.cpu(), start=None, hybridizes=False):
    net = gluon.nn.HybridSequential(prefix='')
    net.add(gluon.nn.Flatten(), gluon.nn.Dense(
        problem.outputs, in_units=problem.rows.shape[1], use_bias=problem.bias, prefix='fc_'))
    net.cast(problem.dtype)
    net.initialize(initializer, ctx=context)
    for name, value in (start or {}).items():
        net.collect_params()[name].set_data(value)
    for name, param in net.collect_params().items():
        param.wd_mult = float(name == 'fc_weight')  # as in Module
    if hybridizes:
        net.hybridize()
    return net


def trainer_of(problem, net, objective, tol, optimizer, params, proximal, **settings):
    return SVRGTrainer(net.collect_params(), optimizer, {'wd': problem.wd, **dict(params)}, tol=tol,
                       proximal=proximal and {'fc_weight': proximal}, objective=objective,
                       **settings)


def by_gluon(problem, epochs=100, tol=1e-5, update_freq=2, optimizer='newton_cg', params=(),
             proximal=None, data=None, initializer=mx.init.Uniform(0.01), start=None,
             context=mx.cpu(), hybridizes=False, changed=lambda data: data, **settings):
    net, loss = net_of(problem, initializer, context, start, hybridizes), LOSSES[problem.loss][1]
    trainer = trainer_of(problem, net, lambda data, label: loss(net(changed(data)), label), tol,
                         optimizer, params, proximal, **settings)
    train_epochs(trainer, data or problem.loader(), epochs, update_freq)
    found = {name: param.data(param.list_ctx()[0]).asnumpy().astype('float64')
             for name, param in net.collect_params().items()}
    return Trained(trainer, found['fc_weight'], found.get('fc_bias', 0.))

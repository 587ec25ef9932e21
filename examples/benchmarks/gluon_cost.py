"""What does an epoch of SVRGTrainer cost, over its price and over an epoch of gluon.Trainer?

Times an epoch with a snapshot, an epoch of Trainer, and the bare forward and
backward passes over the same batches, for hybridized networks, in interleaved
rounds. Each ratio is of two times of one round. The price is what the algorithm
cannot avoid: Trainer's epoch and two bare passes over the data.
"""

import common
import mxnet as mx
import numpy as np
from common import pyplot
from mxnet import autograd, gluon
from mxnet.gluon import nn

from svrg_optimization.gluon import SVRGTrainer


def perceptron():
    net = nn.HybridSequential()
    net.add(nn.Dense(512, activation='relu'), nn.Dense(256, activation='relu'), nn.Dense(10))
    return net, (784,)


def lenet():
    net = nn.HybridSequential()
    for filters in (20, 50):
        net.add(nn.Conv2D(filters, 5, activation='tanh'), nn.MaxPool2D(2, 2))
    net.add(nn.Dense(500, activation='tanh'), nn.Dense(10))
    return net, (1, 28, 28)


MODELS = {'MLP 784-512-256-10': (perceptron, 50), 'LeNet': (lenet, 10)}
BATCH_SIZE = 128


def functions_of(network, count):
    """Return what to time: an epoch of each trainer, and the bare passes over its batches."""
    net, shape = network()
    net.initialize()
    net.hybridize(static_alloc=True)
    rng = np.random.RandomState(0)
    batches = [(mx.nd.array(rng.normal(size=(BATCH_SIZE, *shape))),
                mx.nd.array(rng.randint(8, size=BATCH_SIZE))) for _ in range(count)]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True)
    net(batches[0][0])
    rate = {'learning_rate': 1e-4}
    plain = gluon.Trainer(net.collect_params(), 'sgd', rate)
    svrg = SVRGTrainer(net.collect_params(), 'sgd', rate,
                       objective=lambda data, label: loss(net(data), label))

    def passes():
        for data, label in batches:
            with autograd.record():
                value = loss(net(data), label)
            value.backward()

    def epoch_of_trainer():
        for data, label in batches:
            with autograd.record():
                value = loss(net(data), label)
            value.backward()
            plain.step(BATCH_SIZE)

    def epoch_of_svrg():
        svrg.update_full_grads(batches)
        for data, label in batches:
            svrg.backward(data, label)
            svrg.step(BATCH_SIZE)

    for function in (passes, epoch_of_trainer, epoch_of_svrg):
        function()
    return {'passes': passes, 'Trainer': epoch_of_trainer, 'SVRGTrainer': epoch_of_svrg}


def main():
    args = common.parser(__doc__).parse_args()
    common.quiet()
    rows, medians = [], []
    for name, (network, count) in MODELS.items():
        seconds = common.seconds_of_rounds(functions_of(network, count), args.rounds)
        prices = seconds['SVRGTrainer'] / (seconds['Trainer'] + 2 * seconds['passes'])
        ratios = seconds['SVRGTrainer'] / seconds['Trainer']
        medians.append(np.median(prices))
        rows.append([name, common.median(1e3 * seconds['Trainer'], '%.0f'), common.median(ratios),
                     common.median(prices), common.spread(seconds['Trainer'], ratios, prices)])
    common.write(args.output, 'gluon_cost',
                 'Epochs with a snapshot each, batches of %d rows. Median of %d interleaved '
                 'rounds; spread: the widest range over its median.' % (BATCH_SIZE, args.rounds),
                 ['network', 'Trainer, ms', 'SVRGTrainer over Trainer', 'over the price',
                  common.SPREAD], rows)
    figure, axes = pyplot.subplots(figsize=(6, 2.4))
    axes.barh([row[0] for row in rows], medians,
              color=common.COLORS['SVRG'])
    axes.axvline(1, color='black')
    axes.set(xlabel="time of an epoch / (Trainer's epoch and two bare passes)")
    common.save_picture(args.output, 'gluon_cost', figure)


if __name__ == '__main__':
    main()

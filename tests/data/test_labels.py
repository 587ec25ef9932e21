"""Labels that a loss layer cannot learn, and of which MXNet says nothing, are told once."""

import re
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import bad_input
from problems import prepared
from svrg_optimization import SVRGModule, SVRGTrainer

NAN = float('nan')
DATA, LABEL = mx.sym.Variable('data'), mx.sym.Variable('label')


def scores(outputs):
    return mx.sym.FullyConnected(DATA, num_hidden=outputs, name='fc')


def pixels(**settings):
    """Classify each of four pixels: (n, classes, pixels)."""
    return mx.sym.SoftmaxOutput(mx.sym.reshape(scores(12), (-1, 3, 4)), LABEL, multi_output=True,
                                **settings)


SOFTMAX = mx.sym.SoftmaxOutput(scores(3), LABEL, name='loss')
LOGISTIC = mx.sym.LogisticRegressionOutput(scores(1), LABEL, name='loss')
SVM, IGNORED = mx.sym.SVMOutput(scores(3), LABEL), pixels(use_ignore=True, ignore_label=255)
OF_WORDS = mx.sym.SoftmaxOutput(mx.sym.reshape(scores(12), (-1, 3)), mx.sym.reshape(LABEL, (-1,)),
                                use_ignore=True, ignore_label=-1)


def module_of(symbol, labels, **kwargs):
    data = mx.io.NDArrayIter(np.random.RandomState(0).normal(size=(37, 4)),
                             np.resize(labels, (37, *np.shape(labels)[1:])), 10,
                             label_name='label')
    return prepared(SVRGModule(symbol, label_names=('label',), update_freq=1, **kwargs), data), data


def trainer_of(loss, labels, outputs=1):
    net = gluon.nn.Dense(outputs, in_units=4)
    net.initialize()
    return SVRGTrainer(net.collect_params(), 'sgd', objective=lambda data, label: loss(
        net(data), label)), [(mx.nd.ones((6, 4)), mx.nd.array(np.resize(labels, (6, 1))))]


@pytest.mark.parametrize('made, says', [
    (module_of(LOGISTIC, [1, -1]),
     r'labels of loss \(LogisticRegressionOutput\) must be from 0 to 1, and not -1, which trains '
     r'another model: of -1 and 1 make \(y \+ 1\) / 2$'),
    (module_of(SOFTMAX, [1, 2, 3]), r'\(SoftmaxOutput\) must be whole numbers from 0 to 2,.* beg'),
    (module_of(SVM, [-1, 0.5]), 'whole numbers from 0 to 2, and not -1'),
    (module_of(IGNORED, [[0, 1, 255, 254]]), 'from 0 to 2, and not 254'),
    (module_of(mx.sym.SoftmaxOutput(scores(1), LABEL, name='one'), [0]),
     r'one \(SoftmaxOutput\) must have two outputs or more, and not one'),
    (module_of(SVM, [0, NAN]), 'whole numbers from 0 to 2, and some are NaN or infinite: leave'),
    (module_of(LOGISTIC, [0, NAN]), 'Rows of label that are not finite: '),
    *((module_of(*given), None) for given in (
        (LOGISTIC, [0, 0.3, 1]), (SOFTMAX, [0, 1, 2]), (SOFTMAX, [[0, 0.5, 0.5]]), (SVM, [0, 1, 2]),
        (pixels(), [[0, 1, 2, 0]]), (IGNORED, [[0, 1, 2, 255]]), (OF_WORDS, [[0, 1, 2, -1]]),
        (mx.sym.SoftmaxOutput(mx.sym.reshape(scores(12), (-1, 4, 3)), LABEL, preserve_shape=True),
         [[0, 1, 2, 0]]),
        (mx.sym.LinearRegressionOutput(scores(1), LABEL), [-1, 5]))),
    (trainer_of(gluon.loss.SoftmaxCELoss(), [1, 2, 3], 3), 'from 0 to 2, and not 3,.* begin'),
    (trainer_of(gluon.loss.SoftmaxCELoss(), [1, 2, NAN], 3), 'and some are NaN or infinite'),
    (trainer_of(gluon.loss.SquaredHingeLoss(), [1, 0]), 'must be -1 or 1, and not 0, .*: of 0 and'),
    (trainer_of(gluon.loss.LogisticLoss(label_format='binary'), [1, -1]), 'from 0 to 1, and not'),
    *((trainer_of(*given), None) for given in (
        (gluon.loss.SoftmaxCELoss(), [0, 1, 2], 3), (gluon.loss.SigmoidBCELoss(), [0.5]),
        (gluon.loss.LogisticLoss(), [1, -1]), (gluon.loss.HingeLoss(), [1, -1])))])
def test_labels_that_a_loss_cannot_learn_are_told_once(made, says):
    trains, data = made
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(2):
            trains.update_full_grads(data)
    assert len(caught) == (says is not None)
    assert not caught or re.search(says, str(caught[0].message))


def test_labels_of_padding_are_not_looked_at():
    module, data = module_of(SOFTMAX, [0, 1, 2])
    batch = next(data)
    batch.label[0][7:] = -1
    batch.pad = 3
    module.update_full_grads(bad_input.Data(batch))


def test_labels_on_two_devices_are_told_of_once():
    module, data = module_of(SOFTMAX, [1, 2, 3], context=[mx.cpu(0), mx.cpu(1)])
    with pytest.warns(UserWarning) as caught:
        module.fit(data, eval_metric=[], num_epoch=2)
    told = [warning for warning in caught if 'from 0 to 2' in str(warning.message)]
    assert len(told) == 1 and told[0].filename == __file__

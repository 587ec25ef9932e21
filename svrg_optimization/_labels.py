"""Labels that a loss cannot learn, of which MXNet says nothing: they are told once."""

import numpy as np
from mxnet import gluon, nd

# What labels must be, which ones are not, given the number of classes, and what to do.
CLASSES = ('whole numbers from 0 to %d', lambda labels, classes: (
    (labels < 0) | (labels >= classes) | (labels != labels.round())),
           'begin with class 0')
PROBABILITIES = ('from 0 to 1', lambda labels, _: (labels < 0) | (labels > 1),
                 'of -1 and 1 make (y + 1) / 2')
_SIGNS = '-1 or 1', lambda labels, _: abs(abs(labels) - 1) > 0, 'of 0 and 1 make 2 y - 1'
_RULES = {
    gluon.loss.SoftmaxCELoss: CLASSES, gluon.loss.SigmoidBCELoss: PROBABILITIES,
    gluon.loss.LogisticLoss: _SIGNS, gluon.loss.HingeLoss: _SIGNS,
    gluon.loss.SquaredHingeLoss: _SIGNS}


def check_layer(warn_once, layer, rule, scores, labels):
    """Look at the labels that a loss layer of a symbol gets, given its node and their rule."""
    classes = ignored = None
    if rule is CLASSES:
        attrs = layer.get('attrs', {})
        are_classes = labels.size < scores.size  # and no probabilities
        classes = scores.size // (labels.size if are_classes else scores.shape[0])
        labels = labels if are_classes else None
        if attrs.get('use_ignore') in ('True', 'true', '1'):
            ignored = float(attrs.get('ignore_label', -1))
    _check(warn_once, '%(name)s (%(op)s)' % layer, rule, labels, classes, ignored)


def check_block(warn_once, block, scores=None, labels=None, *weights):
    """Look at the labels that a block of ``gluon.loss`` is called with."""
    if not (isinstance(scores, nd.NDArray) and isinstance(labels, nd.NDArray)):
        return
    rule = next((_RULES[each] for each in type(block).__mro__ if each in _RULES), None)
    if getattr(block, '_label_format', '') == 'binary':
        rule = PROBABILITIES
    is_known = not weights and getattr(block, '_sparse_label', True)  # weights may leave rows out
    _check(warn_once, block.name, rule, labels if is_known else None,
           scores.shape[block._axis] if rule is CLASSES else None)


def _check(warn_once, loss, rule, labels, classes=None, ignored=None):
    """Warn once of labels, if they and a rule of the loss are known."""
    if classes == 1:
        warn_once('%s must have two outputs or more, and not one, whose softmax is always 1: '
                  'nothing is trained. For two classes by one output take a logistic loss' % loss)
    elif rule and labels is not None:
        allowed, is_bad, advice = rule
        labels = labels.asnumpy()
        if rule is CLASSES and not np.isfinite(labels).all():  # else the gradient is not either
            warn_once('labels of %s must be %s, and some are NaN or infinite: leave these rows out'
                      % (loss, allowed % (classes - 1)), 'labels of ' + loss)
            return
        bad = labels[is_bad(labels, classes) & (labels != ignored) & np.isfinite(labels)]
        if bad.size:
            warn_once('labels of %s must be %s, and not %g, which trains another model: %s' % (
                loss, allowed % (classes - 1) if classes else allowed, bad[0], advice),
                'labels of ' + loss)

"""Labels that a loss cannot learn, of which MXNet says nothing: they are told once."""

from mxnet import gluon, nd


def check_layer(warn_once, layer, scores, labels):
    """Look at the labels that a loss layer of a symbol gets, given its node."""
    attrs, loss = layer.get('attrs', {}), '%(name)s (%(op)s)' % layer
    if layer['op'] == 'LogisticRegressionOutput':
        _check(warn_once, loss, labels)
    elif layer['op'] in ('SoftmaxOutput', 'Softmax'):
        are_classes = labels.size < scores.size  # and no probabilities
        ignores = attrs.get('use_ignore') in ('True', 'true', '1')
        _check(warn_once, loss, labels if are_classes else None,
               scores.size // (labels.size if are_classes else scores.shape[0]),
               float(attrs.get('ignore_label', -1)) if ignores else None)


def check_block(warn_once, block, scores=None, labels=None, *weights):
    """Look at the labels that a block of ``gluon.loss`` is called with."""
    if not (isinstance(scores, nd.NDArray) and isinstance(labels, nd.NDArray)):
        return
    labels = None if weights else labels  # weights may leave rows out
    if isinstance(block, gluon.loss.SoftmaxCELoss):
        _check(warn_once, block.name, labels if block._sparse_label else None,
               scores.shape[block._axis])
    elif (isinstance(block, gluon.loss.SigmoidBCELoss)
          or getattr(block, '_label_format', '') == 'binary'):
        _check(warn_once, block.name, labels)


def _check(warn_once, loss, labels, classes=None, ignored=None):
    """Warn once of labels, if they are known. Without `classes` they are from 0 to 1."""
    if classes == 1:
        warn_once('%s must have two outputs or more, and not one, whose softmax is always 1: '
                  'nothing is trained. For two classes by one output take a logistic loss' % loss)
    elif labels is not None:
        labels, most = labels.asnumpy(), (classes or 2) - 1
        bad = labels[(labels > most) & (labels != ignored)]
        if classes is None and (labels == -1).any() and (abs(labels) == 1).all():
            bad, advice = labels[labels == -1], 'give (y + 1) / 2'
        else:
            advice = 'begin with class 0'
        if bad.size:
            warn_once('labels of %s must be from 0 to %d, and not %g, which trains another model: '
                      '%s' % (loss, most, bad[0], advice), 'labels of ' + loss)

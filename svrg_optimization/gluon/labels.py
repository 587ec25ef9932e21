"""Labels of the blocks of ``gluon.loss``."""

from mxnet import gluon, nd

from ..core.labels import warn_of_labels, warn_of_one_class


def check_labels(warn_once, block, scores=None, labels=None, *weights):
    """Warn once of labels that a block cannot learn, which it is called with."""
    if not (isinstance(scores, nd.NDArray) and isinstance(labels, nd.NDArray)):
        return
    if isinstance(block, (gluon.loss.SoftmaxCELoss, gluon.loss.KLDivLoss)):
        classes = scores.shape[block._axis]
        if classes == 1:
            warn_of_one_class(warn_once, block.name)
        elif not weights and getattr(block, '_sparse_label', False):  # weights may leave rows out
            warn_of_labels(warn_once, block.name, labels.asnumpy(), classes)
    elif not weights and (isinstance(block, gluon.loss.SigmoidBCELoss)
                          or getattr(block, '_label_format', '') == 'binary'):
        warn_of_labels(warn_once, block.name, labels.asnumpy(), 1)

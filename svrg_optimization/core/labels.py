"""Labels that a loss cannot learn, of which MXNet says nothing."""


def warn_of_labels(warn_once, loss, labels, classes, ignored=None):
    """Warn once of labels of a loss, a numpy.ndarray, that are none of its classes, nor ignored.

    With one class they are numbers in [0, 1].
    """
    most = max(1, classes - 1)
    is_bad = (labels < 0) | (labels > most) | ((classes > 1) & (labels % 1 != 0))
    is_bad &= labels != ignored
    if is_bad.any():
        advice = ''
        if most == 1 and (abs(labels) == 1).all():
            advice = ': give (y + 1) / 2'
        elif labels.min() == 1 and labels.max() == most + 1:
            advice = ': give y - 1'
        warn_once('labels of %s must be %sfrom 0 to %d, and not %g: they train another model%s'
                  % (loss, 'classes ' * (classes > 1), most, labels[is_bad][0], advice),
                  'labels of ' + loss)


def warn_of_one_class(warn_once, loss):
    """Warn once of a softmax over one output."""
    warn_once('%s must have two outputs or more, and not one, whose softmax is always 1: nothing '
              'is trained. For two classes by one output take a logistic loss' % loss)

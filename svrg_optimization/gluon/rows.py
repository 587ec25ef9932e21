"""Rows of a batch: along which axes its inputs have them, and how many its loss is of."""

from .._argument_checks import check_epoch
from .numpy_arrays import arrays_in


class Rows:
    """Axes of the rows of the loss function's inputs, and the form of its loss.

    The `kind` of loss is 'mean' or 'sum' over the rows, or 'by row'; None before it is known.
    """

    def __init__(self, batch_axis, loss_is_mean):
        in_list = isinstance(batch_axis, (list, tuple))
        for axis in batch_axis if in_list else [batch_axis]:
            if not (in_list and axis is None):
                check_epoch('batch_axis', axis)
        self._batch_axis = batch_axis
        self.kind = {None: None, True: 'mean', False: 'sum'}[loss_is_mean]

    def axes(self, inputs):
        """Return the axis of the rows in each input, None if it has none."""
        if isinstance(self._batch_axis, (list, tuple)):
            return self._batch_axis
        return [self._batch_axis] * len(inputs)

    def of_inputs(self, inputs):
        """List the numbers of rows of the inputs that are arrays, None for one without the axis."""
        return [dict(enumerate(array.shape)).get(axis)
                for value, axis in zip(inputs, self.axes(inputs)) if axis is not None
                for array in arrays_in([value])]

    def count(self, losses, inputs):
        """Return how the gradients of each device count in a sum over rows.

        That is the weight of each device, the number of rows on all devices, and the number of
        rows whose gradients are summed: a mean counts as one.
        """
        weights, rows, summed = [], 0, 0
        for loss, of_device in zip(losses, inputs):
            count, is_mean = self._of_loss(loss, of_device)
            weights.append(count if is_mean else 1)
            rows += count
            summed += 1 if is_mean else count
        return weights, rows, summed

    def _of_loss(self, loss, inputs):
        """Return the number of rows on one device, and whether the loss is a mean over them."""
        if loss.size > 1:
            if self.kind == 'mean':
                raise ValueError('objective must return a loss of one element with loss_is_mean='
                                 'True, or after such a loss, and not of shape %s' % (loss.shape,))
            self.kind = 'by row'
        if self.kind == 'by row':
            return loss.size, False
        rows = next(filter(None, self.of_inputs(inputs)), None)
        if rows is None:
            raise ValueError('objective must return a loss with one element for each row if no '
                             'input is an array with rows along batch_axis')
        if rows > 1 and self.kind is None:
            self.kind = 'mean'
        return rows, self.kind != 'sum'

"""Samples of the data for the full gradient: how large, how often, and of which data."""

from .._argument_checks import checked_count
from ..data.iterators import check_iterator
from ..data.passes import Pass, Stream
from ..full_grad_batches import Growing


class Sampling:
    """Checked values of the arguments for sampled full gradients.

    Parameters
    ----------
    stores_batches : bool
        Whether ``fit`` trains on the batches of the pass.

    Attributes
    ----------
    full_grad_batches : int, callable or None
        Number of batches of a pass, or a schedule of it; None for all.
    updates_per_snapshot : int or None
        Updates from one snapshot to the next; None if epochs count.
    full_grad_data : DataIter or None
        Data of the pass; None for the training data.
    """

    def __init__(self, stores_batches):
        self.full_grad_batches = self.updates_per_snapshot = self.full_grad_data = None
        self._stores_batches = stores_batches
        self._stream = None

    def set(self, **given):
        """Check some of the arguments, together with the others, and set them.

        Parameters
        ----------
        **given
            Attributes of this object.

        Raises
        ------
        TypeError
            If an argument is of another type.
        ValueError
            If a number is below 1, if `updates_per_snapshot` has no
            `full_grad_data`, or if batches of other data would be stored.
        """
        batches, updates, data = [given.get(name, getattr(self, name)) for name in (
            'full_grad_batches', 'updates_per_snapshot', 'full_grad_data')]
        if batches is not None and not callable(batches):
            batches = checked_count('full_grad_batches', batches,
                                    'None, an int of 1 or more or a callable that returns one')
        if updates is not None:
            updates = checked_count('updates_per_snapshot', updates,
                                    'None or an int of 1 or more')
        if data is not None:
            check_iterator('full_grad_data', data)
        elif updates is not None:
            raise ValueError('full_grad_data must be a DataIter where updates_per_snapshot is '
                             'given, since a pass within an epoch must not move train_data, and '
                             'not None')
        if self._stores_batches and data is not None:
            raise ValueError('full_grad_data must be None with store_snapshot_grads, since fit '
                             'trains on the stored batches, and not %r' % (data,))
        if data is not self.full_grad_data:
            self._stream = None if data is None else Stream(data)
        self.full_grad_batches, self.updates_per_snapshot = batches, updates
        self.full_grad_data = data

    def count_after(self, snapshots):
        """Return the number of batches of the next pass, None for all.

        Parameters
        ----------
        snapshots : int
            Number of snapshots so far.
        """
        batches = self.full_grad_batches
        if callable(batches):
            batches = checked_count(
                'full_grad_batches', batches(snapshots),
                'a callable that returns an int of 1 or more (here after %d snapshots)' % snapshots)
        return batches

    def fields_of_plan(self, snapshots):
        """Return the fields of a Plan about samples, for `snapshots` as in `count_after`."""
        return {'full_grad_batches': self.count_after(snapshots) or 0,
                'updates_per_snapshot': self.updates_per_snapshot or 0,
                'has_full_grad_data': self.full_grad_data is not None}

    def pass_over(self, train_data, count):
        """Return the batches of the next pass in ``fit``.

        Parameters
        ----------
        train_data : DataIter
            Data of the training, at their beginning.
        count : int or None
            Result of `count_after`.

        Returns
        -------
        Pass or Stream
            The batches.
        """
        if self._stream is None:
            return Pass(train_data, count)
        self._stream.count = count
        return self._stream

    def facts(self):
        """Return what a checkpoint contains of this, as values of types that JSON supports."""
        batches = self.full_grad_batches
        if type(batches) is Growing:
            batches = vars(batches)
        elif callable(batches):
            batches = 'schedule'
        return {'full_grad_batches': batches, 'updates_per_snapshot': self.updates_per_snapshot,
                'full_grad_data': self.full_grad_data is not None}

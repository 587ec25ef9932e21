"""When a snapshot is due, over how many batches, and with which α."""

from .._argument_checks import check_iterator, checked_bool, checked_count, checked_positive
from ..alpha import checked_alpha
from ..full_grad_batches import Growing

_SETTINGS = 'update_freq', 'full_grad_batches', 'updates_per_snapshot', 'full_grad_data', 'tol'


def setting(name, documentation):
    """Return a property of what has a `_svrg`: a setting of its Schedule."""
    return property(lambda owner: getattr(owner._svrg.schedule, name),
                    lambda owner, value: owner._svrg.schedule.set(**{name: value}),
                    doc=documentation)


class Schedule:
    """Checked settings of when snapshots are taken and how much they count.

    Buckets with the same weights share one. The settings are keyword arguments
    of SVRGModule and attributes of this object: `update_freq`, `alpha`,
    `full_grad_batches`, `updates_per_snapshot`, `full_grad_data` and `tol`.

    Parameters
    ----------
    stores_batches : bool
        Whether ``fit`` trains on the batches of the pass.
    stream_of : callable, optional
        Returns the BatchesOfPass over `full_grad_data`.
    **settings
        Their values.

    Attributes
    ----------
    local_steps : bool
        Whether workers make their steps alone.
    is_off : bool
        Whether α is the number 0, so that no step needs a snapshot.

    Raises
    ------
    TypeError
        If a setting is of another type or has another name.
    ValueError
        If a number is out of its range, if `updates_per_snapshot` has no
        `full_grad_data`, if batches of other data would be stored, or if `tol`
        has no full gradient of all data to look at.
    """

    def __init__(self, stores_batches=False, stream_of=None, *, alpha=1., **settings):
        self.local_steps = checked_bool('local_steps', settings.pop('local_steps', False))
        unknown = sorted(settings.keys() - set(_SETTINGS))
        if unknown:
            raise TypeError('a setting must be alpha or one of %s, and not %s'
                            % (', '.join(_SETTINGS), ', '.join(unknown)))
        self._stores_batches, self._stream_of = stores_batches, stream_of
        vars(self).update(dict.fromkeys(_SETTINGS))
        self.stream = None  # the place in full_grad_data where the next pass goes on
        if settings.get('update_freq') is None and settings.get('updates_per_snapshot') is not None:
            settings['update_freq'] = 1
        self.set(alpha=alpha, **settings)

    def set(self, **given):
        """Check some settings, together with the others, and set them."""
        settings = {**vars(self), **given}
        if 'alpha' in given:
            settings['alpha'] = checked_alpha(given['alpha'])
            settings['is_off'] = not callable(given['alpha']) and given['alpha'] == 0
        batches, updates, data = (settings[name] for name in (
            'full_grad_batches', 'updates_per_snapshot', 'full_grad_data'))
        if batches is not None and not callable(batches):
            settings['full_grad_batches'] = checked_count(
                'full_grad_batches', batches,
                'None, an int of 1 or more or a callable that returns one')
        if updates is not None:
            settings['updates_per_snapshot'] = checked_count(
                'updates_per_snapshot', updates, 'None or an int of 1 or more')
        if data is not None:
            check_iterator('full_grad_data', data)
        elif updates is not None:
            raise ValueError('full_grad_data must be a DataIter where updates_per_snapshot is '
                             'given, since a pass within an epoch must not move train_data, and '
                             'not None')
        if self._stores_batches and data is not None:
            raise ValueError('full_grad_data must be None with store_snapshot_grads, since fit '
                             'trains on the stored batches, and not %r' % (data,))
        if 'tol' in given:
            settings['tol'] = checked_positive('tol', given['tol'])
        if settings['is_off'] and (self.local_steps or settings['tol'] is not None):
            raise ValueError('alpha must not be 0 with %s: there is no full gradient then'
                             % ('local_steps' if self.local_steps else 'tol'))
        if settings['tol'] is not None and batches is not None:
            raise ValueError('full_grad_batches must be None with tol, as the gradient of a '
                             'sample does not vanish, and not %r' % (batches,))
        if data is not self.full_grad_data:
            settings['stream'] = None if data is None else self._stream_of(data)
        if 'update_freq' in given:
            settings['update_freq'] = checked_count('update_freq', given['update_freq'])
        vars(self).update(settings)

    def is_due(self, snapshot, epoch):
        """Tell whether a snapshot is due where an epoch begins."""
        if self.is_off:
            return False
        if not snapshot.is_active or snapshot.is_stale:
            return True
        if self.updates_per_snapshot is not None:
            return snapshot.num_update - snapshot.taken_at >= self.updates_per_snapshot
        return self.update_freq is not None and epoch % self.update_freq == 0

    def is_due_within_epoch(self, snapshot):
        """Tell whether a snapshot is due before the next step."""
        return self.updates_per_snapshot is not None and self.is_due(snapshot, None)

    def alpha_after(self, updates):
        """Return α after this number of updates."""
        return checked_alpha(self.alpha, updates) if callable(self.alpha) else float(self.alpha)

    def batches_after(self, snapshots):
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

    def facts(self):
        """Return what a checkpoint contains of this, as values of types that JSON supports."""
        batches = self.full_grad_batches
        if type(batches) is Growing:
            batches = vars(batches)
        elif callable(batches):
            batches = 'schedule'
        return {'update_freq': self.update_freq,
                'alpha': None if callable(self.alpha) else float(self.alpha),
                'full_grad_batches': batches, 'updates_per_snapshot': self.updates_per_snapshot,
                'full_grad_data': self.full_grad_data is not None, 'tol': self.tol,
                'local_steps': self.local_steps}

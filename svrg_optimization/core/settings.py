"""The settings of both front ends. A new setting begins here."""

import math

from .._argument_checks import checked_bool_or_none, checked_count, checked_number
from .._warn_once import warn
from ..alpha import checked_coefficient
from ..proximal import operators_as_json, operators_from_json
from .exclusions import check_together

_COEFFICIENT = 'a number from 0 to 1 or a callable that returns one'
_LOST = 'a function or an operator of your own'  # in a file, in the place of one
_SET_LATER = {  # with the docstrings of the properties
    'update_freq': 'Epochs from one snapshot to the next, 1 or more.',
    'alpha': 'Coefficient of the variance reduction, a number in [0, 1] or a schedule of it. In a '
             'resumed run a schedule also counts the updates before the stop.',
    'full_grad_batches': 'Batches of a full gradient: None for all, an int, or a function of the '
                         'number of snapshots so far.',
    'tol': 'The `distance` of `result` at which training has converged and ends; None if it does '
           'not end there.'}


class Settings:
    """Checked settings of a front end, as attributes. Buckets with the same weights share one.

    A front end leaves out those that it does not take.
    """

    def __init__(self, *, update_freq=2, loss_is_mean=None, alpha=1., nonfinite='warn',
                 full_grad_batches=None, proximal=None, tol=None):
        self.update_freq = checked_count('update_freq', update_freq)
        self.loss_is_mean = checked_bool_or_none('loss_is_mean', loss_is_mean)
        self.alpha = alpha if callable(alpha) else float(
            checked_coefficient('alpha', alpha, _COEFFICIENT))
        if nonfinite not in ('warn', 'raise'):
            raise ValueError("nonfinite must be 'warn' or 'raise', not %r" % (nonfinite,))
        self.nonfinite = nonfinite
        if not (full_grad_batches is None or callable(full_grad_batches)):
            full_grad_batches = checked_count('full_grad_batches', full_grad_batches, 'None, an '
                                              'int of 1 or more or a callable that returns one')
        self.full_grad_batches = full_grad_batches
        self.proximal = dict(proximal) if isinstance(proximal, dict) else proximal
        self.tol = None if tol is None else float(checked_number(
            'tol', tol, 'None or a number above 0', lambda number: 0 < number < math.inf))

        check_together(self.features())

    def features(self):
        """Return what `check_together` takes."""
        return {'alpha of 0': self.is_plain and str(self.alpha), 'tol': self.tol,
                'full_grad_batches': self.full_grad_batches, 'proximal': self.proximal}

    def set(self, **given):
        """Check some settings, together with the others, and set them."""
        vars(self).update(vars(Settings(**{**vars(self), **given})))

    @property
    def is_plain(self):
        """Whether steps are plain steps: α is the number 0, and no snapshot is taken."""
        return not callable(self.alpha) and self.alpha == 0

    def batches_after(self, snapshots):
        """Return the number of batches of a pass after a number of snapshots, None for all."""
        batches = self.full_grad_batches
        if not callable(batches):
            return batches
        return checked_count('full_grad_batches', batches(snapshots), 'a callable that returns an '
                             'int of 1 or more (here after %d snapshots)' % snapshots)

    def alpha_after(self, updates):
        """Return α after this number of updates."""
        if not callable(self.alpha):
            return self.alpha
        return float(checked_coefficient('alpha', self.alpha(updates), '%s (here after %d updates)'
                                         % (_COEFFICIENT, updates)))

    def state(self):
        """Return the settings as a checkpoint has them."""
        proximal = operators_as_json(self.proximal)
        state = {**vars(self), 'proximal': _LOST if proximal is None else proximal}
        return {name: _LOST if callable(value) else value for name, value in state.items()}

    def agreed(self, snapshots):
        """Return the settings that must be equal on all workers, after a number of snapshots."""
        return {**self.state(), 'full_grad_batches': self.batches_after(snapshots)}


def arguments_from(state, given):
    """Return the arguments of a constructor: the given ones, and saved ones for the others."""
    saved = {name: value for name, value in state.items() if name not in given}
    lost = [name for name, value in saved.items() if value == _LOST]
    if lost:
        warn('the checkpoint was saved with %s of your own, which it cannot hold: give %s, or the '
             'default is taken' % (' and '.join(lost), ' and '.join(name + '=' for name in lost)))
    known = {name: value for name, value in saved.items() if name not in lost}
    if 'proximal' in known:
        known['proximal'] = operators_from_json(known['proximal'])
    return {**known, **given}


def setting(name):
    """Return a property of a front end: a setting that may be set later."""
    return property(lambda owner: getattr(owner._svrg.settings, name),
                    lambda owner, value: owner._svrg.settings.set(**{name: value}),
                    doc=_SET_LATER[name])

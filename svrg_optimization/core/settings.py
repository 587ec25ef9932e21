"""The settings of both front ends, one line of a table each, and when a snapshot is due.

A new setting begins here: CONTRIBUTING.md has the recipe.
"""

import functools
import inspect
import json
import zlib
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .._argument_checks import (
    checked_bool,
    checked_choice,
    checked_count,
    checked_positive,
)
from .._warn_once import warn
from ..alpha import checked_alpha
from ..proximal import operators_as_json, operators_from_json
from .requirements import ALL_ROWS, SNAPSHOTS, require
from .store import checked_budget

MODULE, GLUON = 'SVRGModule', 'SVRGTrainer'
_SCHEDULE = 'schedule'  # in a file, in the place of one that it cannot hold


class InFile(NamedTuple):
    """How a checkpoint has a setting.

    Attributes
    ----------
    write, read : callable
        From the value to a value of a type that JSON supports, and back.
    lost : callable
        Takes what was written; says what of the value a file cannot hold, '' for nothing.
    without : str
        What is then without it, for the warning of `load`.
    """

    write: Callable = lambda value: value
    read: Callable = lambda fact: fact
    lost: Callable = lambda _: ''
    without: str = ''


class Setting(NamedTuple):
    """One setting.

    Attributes
    ----------
    front_ends : tuple of str
        Classes that take it.
    default : object
        Its default.
    check : callable
        Takes name and value; returns the value as it is kept, or raises a TypeError or a
        ValueError. None for what its user checks.
    file : InFile or None
        How a checkpoint has it; None if it has not.
    agreed : dict of str to callable
        Numbers that workers must have alike, or they would wait for each other or train
        otherwise: what the error calls each, and what returns it for the value and the
        number of snapshots so far.
    attribute : str
        Documentation of the attribute as which it may be set later; '' for none.
    """

    front_ends: Tuple[str, ...]
    default: Any
    check: Optional[Callable]
    file: Optional[InFile]
    agreed: Dict[str, Callable]
    attribute: str = ''


def _checked_batches(name, batches):
    if batches is None or callable(batches):
        return batches
    return checked_count(name, batches, 'None, an int of 1 or more or a callable that returns one')


def _next_batches(batches, snapshots):
    """Return the number of batches of a pass after a number of snapshots, None for all."""
    if not callable(batches):
        return batches
    return checked_count('full_grad_batches', batches(snapshots), 'a callable that returns an int '
                         'of 1 or more (here after %d snapshots)' % snapshots)


def _copied(_, proximal):
    return dict(proximal) if isinstance(proximal, dict) else proximal


def _number(value, _):
    return value or 0


def _checksum(fact, _=None):
    return zlib.crc32(json.dumps(fact, sort_keys=True).encode())


_BOTH = MODULE, GLUON
SETTINGS = {
    'update_freq': Setting(
        (MODULE,), None, checked_count, InFile(), {'update_freq (0 for alpha=0)': _number},
        'Epochs from one snapshot to the next, 1 or more.'),
    'loss_is_mean': Setting(
        _BOTH, None, functools.partial(checked_bool, or_none=True), InFile(),
        {'loss_is_mean (-1 for None)': lambda value, _: -1 if value is None else value}),
    'batch_axis': Setting((GLUON,), 0, None, None, {}),
    'sparse_full_grad': Setting(
        (MODULE,), False, checked_bool, InFile(), {'sparse_full_grad (0 for False)': _number}),
    'store_snapshot_grads': Setting(_BOTH, False, checked_budget, InFile(), {}),
    'alpha': Setting(
        _BOTH, 1.0, checked_alpha,
        InFile(lambda alpha: None if callable(alpha) else float(alpha),
               lambda fact: 1. if fact is None else fact,
               lambda fact: 'a schedule of alpha' if fact is None else '', 'it is 1'),
        {'alpha (-1 for a schedule)': lambda alpha, _: -1 if callable(alpha) else alpha},
        'Coefficient of the variance reduction, a number in [0, 1] or a schedule of it. In a '
        'resumed run a schedule counts the updates before.'),
    'nonfinite': Setting(
        _BOTH, 'warn', functools.partial(checked_choice, choices=('warn', 'raise')), InFile(),
        {"nonfinite (1 for 'raise')": lambda value, _: value == 'raise'}),
    'full_grad_batches': Setting(
        (MODULE,), None, _checked_batches,
        InFile(lambda batches: _SCHEDULE if callable(batches) else batches,
               lambda fact: None if fact == _SCHEDULE else fact,
               lambda fact: 'a schedule of full_grad_batches' if fact == _SCHEDULE else '',
               'full gradients are over all batches'),
        {'full_grad_batches (0 for None, the next value of a schedule)':
            lambda batches, snapshots: _next_batches(batches, snapshots) or 0},
        'Batches of a full gradient: None for all, an int, or a function of the number of '
        'snapshots so far.'),
    'updates_per_snapshot': Setting(
        (MODULE,), None, functools.partial(checked_count, or_none=True), InFile(),
        {'updates_per_snapshot (0 for None)': _number},
        'Updates from one snapshot of `fit` to the next, in place of `update_freq`; or None.'),
    'proximal': Setting(
        _BOTH, None, _copied, InFile(
            operators_as_json, operators_from_json,
            lambda fact: 'a proximal operator of another class' if fact is None else '',
            'there is none'), {
                'proximal (its checksum)': lambda given, _: _checksum(operators_as_json(given))}),
    'tol': Setting(
        _BOTH, None, checked_positive, InFile(), {'tol (0 for None)': _number},
        '`gradient_norm` at which training has converged; None if it does not end there.'),
    'local_steps': Setting(
        _BOTH, False, checked_bool, InFile(), {'local_steps (0 for False)': _number}),
}


def takes_settings(front_end):
    """Return a decorator of a class whose constructor takes the settings of a front end.

    They are in the signature that ``help`` shows, in place of ``**settings``, and those
    that may be set later are properties.

    Parameters
    ----------
    front_end : str
        MODULE or GLUON.
    """
    def decorated(klass):
        signature = inspect.signature(klass.__init__)
        given = list(signature.parameters.values())[:-1]
        own = {parameter.name for parameter in given}
        klass.__init__.__signature__ = signature.replace(parameters=given + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=setting.default)
            for name, setting in SETTINGS.items()
            if front_end in setting.front_ends and name not in own])
        for name, setting in SETTINGS.items():
            if front_end in setting.front_ends and setting.attribute:
                setattr(klass, name, property(
                    lambda owner, name=name: getattr(owner._svrg.settings, name),
                    lambda owner, value, name=name: owner._svrg.settings.set(**{name: value}),
                    doc=setting.attribute))
        return klass

    return decorated


class Settings:
    """Checked settings of a front end, as attributes under their names.

    Buckets with the same weights share one.

    Parameters
    ----------
    front_end : str
        MODULE or GLUON.
    **given
        Those that are given.

    Attributes
    ----------
    is_plain : bool
        Whether steps are plain steps: α is the number 0, and no snapshot is taken.

    Raises
    ------
    TypeError
        If a setting is of another type or has another name.
    ValueError
        If a number is out of its range, or if settings exclude each other.
    """

    def __init__(self, front_end, **given):
        known = {name: setting.default for name, setting in SETTINGS.items()
                 if front_end in setting.front_ends}
        for name in given.keys() - known.keys():
            raise TypeError('%s takes no argument %r: its settings are %s'
                            % (front_end, name, ', '.join(known)))
        vars(self).update({name: setting.default for name, setting in SETTINGS.items()})
        if given.get('update_freq') is None:
            given.pop('update_freq', None)
        self.set(**given)
        if front_end == MODULE and self.update_freq is None:
            self.update_freq = 2

    def set(self, **given):
        """Check some settings, together with the others, and set them."""
        for name, value in given.items():
            check = SETTINGS[name].check
            given[name] = value if check is None else check(name, value)
        settings = {**vars(self), **given}
        alpha = settings['alpha']
        settings['is_plain'] = not callable(alpha) and alpha == 0
        if settings['store_snapshot_grads'] and settings['updates_per_snapshot'] is not None:
            raise ValueError('updates_per_snapshot must be None with store_snapshot_grads, with '
                             'which an epoch trains on the batches of its snapshot, and not %r'
                             % settings['updates_per_snapshot'])
        if settings['is_plain']:
            require(SNAPSHOTS, settings, 'alpha', alpha)
        if settings['full_grad_batches'] is not None:
            require(ALL_ROWS, settings, 'full_grad_batches', settings['full_grad_batches'])
        vars(self).update(settings)

    def is_due(self, snapshot, epoch):
        """Tell whether a snapshot is due where an epoch begins."""
        if self.is_plain:
            return False
        if not snapshot.is_active or snapshot.is_stale:
            return True
        if self.updates_per_snapshot is not None:
            return snapshot.num_update - snapshot.taken_at >= self.updates_per_snapshot
        return self.update_freq is not None and epoch % self.update_freq == 0

    def is_due_within_epoch(self, snapshot):
        """Tell whether a snapshot is due before the next step."""
        return self.updates_per_snapshot is not None and self.is_due(snapshot, None)

    def batches_after(self, snapshots):
        """Return the number of batches of a pass after a number of snapshots, None for all."""
        return _next_batches(self.full_grad_batches, snapshots)

    def alpha_after(self, updates):
        """Return α after this number of updates."""
        return (checked_alpha('alpha', self.alpha, updates) if callable(self.alpha)
                else float(self.alpha))

    def facts(self):
        """Return what a checkpoint contains of this, as values of types that JSON supports."""
        return {name: setting.file.write(getattr(self, name))
                for name, setting in SETTINGS.items() if setting.file}

    def plan(self, snapshots):
        """Return the numbers that all workers must have alike, by what errors call them."""
        return {label: number(getattr(self, name), snapshots)
                for name, setting in SETTINGS.items() for label, number in setting.agreed.items()}


def default_facts():
    """Return what an older checkpoint has of settings that were added later: the defaults."""
    return {name: setting.file.write(setting.default) for name, setting in SETTINGS.items()
            if setting.file}


def arguments_from(facts, given):
    """Return the arguments of a constructor: those that are given, and for others the saved ones.

    Parameters
    ----------
    facts : dict
        What a checkpoint says.
    given : dict
        Arguments of the user.
    """
    arguments = {}
    for name, setting in SETTINGS.items():
        if name in given or not setting.file:
            continue
        lost = setting.file.lost(facts[name])
        if lost:
            warn('the checkpoint was saved with %s, which it cannot hold: give %s=, or %s'
                 % (lost, name, setting.file.without))
        arguments[name] = setting.file.read(facts[name])
    return {**arguments, **given}

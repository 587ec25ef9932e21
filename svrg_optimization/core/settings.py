"""The settings of both front ends, one line of a table each, and when a snapshot is due.

A new setting begins here: CONTRIBUTING.md has the recipe.
"""

import dataclasses
import functools
import inspect
import json
import operator
import zlib
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from .._argument_checks import (
    checked_bool,
    checked_callbacks,
    checked_choice,
    checked_count,
    checked_positive,
)
from .._warn_once import warn
from ..alpha import checked_alpha
from ..proximal import operators_as_json, operators_from_json
from ..sampling import Growing, Sampling
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


def _sampling_as_fact(sampling):
    batches = sampling.batches
    if type(batches) is Growing:
        batches = {'first': batches.first, 'factor': batches.factor, 'limit': batches.limit}
    elif callable(batches):
        batches = _SCHEDULE
    return {'batches': batches, 'updates_per_snapshot': sampling.updates_per_snapshot,
            'data': sampling.data is not None}


def _sampling_from_fact(fact):
    """Return a Sampling; the parts that a user has given are in the fact as they are."""
    batches, updates, data = fact['batches'], fact['updates_per_snapshot'], fact['data']
    if isinstance(batches, dict):
        batches = Growing(**{'limit': None, **batches})  # before 2.0 it had no limit
    if data is None or data is True:
        updates = None  # `update_freq` counts, as over the data of fit
    return Sampling(None if batches == _SCHEDULE else batches, updates,
                    None if isinstance(data, bool) else data)


def _lost_of_sampling(fact):
    return ' and '.join(['sampling.data'] * (fact['data'] is True)
                        + ['a schedule of sampling.batches'] * (fact['batches'] == _SCHEDULE))


def _copied(_, proximal):
    return dict(proximal) if isinstance(proximal, dict) else proximal


def _checked_sampling(name, sampling):
    if not isinstance(sampling, (Sampling, type(None))):
        raise TypeError('%s must be None or a Sampling, not %r' % (name, sampling))
    return sampling or Sampling()


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
    'full_grad_callback': Setting((MODULE,), None, checked_callbacks, None, {}),
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
    'sampling': Setting(
        (MODULE,), Sampling(), _checked_sampling,
        InFile(_sampling_as_fact, _sampling_from_fact, _lost_of_sampling,
               'full gradients do without'), {
            'sampling.batches (0 for None, the next value of a schedule)':
                lambda sampling, snapshots: sampling.batches_after(snapshots) or 0,
            'sampling.updates_per_snapshot (0 for None)':
                lambda sampling, _: sampling.updates_per_snapshot or 0,
            'sampling.data (1 if they are given, 0 if not)':
                lambda sampling, _: sampling.data is not None},
        'What `fit` computes full gradients over, and how often: a Sampling.'),
    'proximal': Setting(
        _BOTH, None, _copied, InFile(
            operators_as_json, operators_from_json,
            lambda fact: 'a proximal operator of another class' if fact is None else '',
            'there is none'), {
                'proximal (its checksum)': lambda given, _: _checksum(operators_as_json(given))}),
    'next_states': Setting(
        (MODULE,), None, None, InFile(), {'next_states (its checksum)': _checksum}),
    'tol': Setting(
        _BOTH, None, checked_positive, InFile(), {'tol (0 for None)': _number},
        '`gradient_norm` at which training has converged; None if it does not end there.'),
    'local_steps': Setting(
        _BOTH, False, checked_bool, InFile(), {'local_steps (0 for False)': _number}),
}
# Older names of the parts of `sampling`.
REPLACED = {'full_grad_batches': 'batches', 'updates_per_snapshot': 'updates_per_snapshot',
            'full_grad_data': 'data'}


def _parts_of_sampling(given):
    """Take what has an older name out of settings; return both, and warn of it."""
    parts = {part: given[name] for name, part in REPLACED.items() if name in given}
    if parts:
        if 'sampling' in given:
            raise TypeError('sampling must have all its parts, and none stand beside it')
        warn('full_grad_batches, updates_per_snapshot and full_grad_data are one argument now: '
             'sampling=Sampling(batches, updates_per_snapshot, data)')
    return parts, {name: value for name, value in given.items() if name not in REPLACED}


def with_sampling(given):
    """Return settings with a `sampling` in the place of its parts under their older names."""
    parts, others = _parts_of_sampling(given)
    return {**others, 'sampling': Sampling(**parts)} if parts else others


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
        for name, part in REPLACED.items() if front_end == MODULE else ():
            setattr(klass, name, property(
                operator.attrgetter('sampling.' + part),
                lambda owner, value, part=part: setattr(
                    owner, 'sampling', dataclasses.replace(owner.sampling, **{part: value})),
                doc='The `%s` of `sampling`: its older name.' % part))
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
        if front_end == MODULE:
            given = with_sampling(given)
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
            self.update_freq = 2 if self.sampling.updates_per_snapshot is None else 1

    def set(self, **given):
        """Check some settings, together with the others, and set them."""
        for name, value in given.items():
            check = SETTINGS[name].check
            given[name] = value if check is None else check(name, value)
        settings = {**vars(self), **given}
        alpha = settings['alpha']
        settings['is_plain'] = not callable(alpha) and alpha == 0
        sampling = settings['sampling']
        if settings['store_snapshot_grads'] and sampling.data is not None:
            raise ValueError('sampling.data must be None with store_snapshot_grads, since fit '
                             'trains on the stored batches, and not %r' % (sampling.data,))
        if settings['is_plain']:
            require(SNAPSHOTS, settings, 'alpha', alpha)
        if sampling.batches is not None:
            require(ALL_ROWS, settings, 'sampling.batches', sampling.batches)
        vars(self).update(settings)

    def is_due(self, snapshot, epoch):
        """Tell whether a snapshot is due where an epoch begins."""
        if self.is_plain:
            return False
        if not snapshot.is_active or snapshot.is_stale:
            return True
        if self.sampling.updates_per_snapshot is not None:
            return snapshot.num_update - snapshot.taken_at >= self.sampling.updates_per_snapshot
        return self.update_freq is not None and epoch % self.update_freq == 0

    def is_due_within_epoch(self, snapshot):
        """Tell whether a snapshot is due before the next step."""
        return self.sampling.updates_per_snapshot is not None and self.is_due(snapshot, None)

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


def of_this_version(facts):
    """Return facts of a checkpoint with the sampling as one fact."""
    facts = dict(facts)
    older = {part: facts.pop(name) for name, part in REPLACED.items() if name in facts}
    return {**facts, 'sampling': older} if older else facts


def arguments_from(facts, given):
    """Return the arguments of a constructor: those that are given, and for others the saved ones.

    Parameters
    ----------
    facts : dict
        What a checkpoint says.
    given : dict
        Arguments of the user.
    """
    parts, given = _parts_of_sampling(given)
    facts, arguments = {**facts, 'sampling': {**facts['sampling'], **parts}}, {}
    for name, setting in SETTINGS.items():
        if name in given or not setting.file:
            continue
        lost = setting.file.lost(facts[name])
        if lost:
            warn('the checkpoint was saved with %s, which it cannot hold: give %s=, or %s'
                 % (lost, name, setting.file.without))
        arguments[name] = setting.file.read(facts[name])
    return {**arguments, **given}

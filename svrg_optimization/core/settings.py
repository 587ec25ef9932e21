"""The settings of both front ends, one line of a table each, and when a snapshot is due.

A new setting begins here: CONTRIBUTING.md has the recipe.
"""

import functools
import inspect
from typing import Any, Callable, NamedTuple, Optional, Tuple

from .._argument_checks import (
    checked_bool,
    checked_callbacks,
    checked_choice,
    checked_count,
    checked_iterator,
    checked_positive,
)
from ..alpha import checked_alpha
from ..full_grad_batches import Growing
from ..proximal import operators_as_json, operators_from_json
from .requirements import ALL_ROWS, SNAPSHOTS, require
from .store import checked_budget

MODULE, GLUON = 'SVRGModule', 'SVRGTrainer'


class InFile(NamedTuple):
    """How a checkpoint has a setting.

    Attributes
    ----------
    write, read : callable
        From the value to a value of a type that JSON supports, and back.
    lost : tuple of (object, str, str)
        For a value that a file cannot hold: what is written in its place, what it is
        called in the warning of `load`, and what is then without it.
    """

    write: Callable = lambda value: value
    read: Callable = lambda fact: fact
    lost: Optional[Tuple[Any, str, str]] = None


class Agreed(NamedTuple):
    """How the workers compare a setting: they would wait for each other, or train otherwise.

    Attributes
    ----------
    name : str
        What the error calls it.
    number : callable
        From the value and the number of snapshots so far to what is compared.
    """

    name: str
    number: Callable = lambda value, _: value or 0


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
    agreed : Agreed or None
        How workers compare it; None if each may have its own.
    attribute : str
        Documentation of the attribute as which it may be set later; '' for none.
    """

    front_ends: Tuple[str, ...]
    default: Any
    check: Optional[Callable]
    file: Optional[InFile]
    agreed: Optional[Agreed]
    attribute: str = ''


def _growing(fact):
    if not isinstance(fact, dict):
        return fact
    return Growing(**{'limit': None, **fact})  # before 2.0 it had no limit


def _fact_of_batches(batches):
    if type(batches) is Growing:
        return vars(batches)
    return 'schedule' if callable(batches) else batches


def _next_batches(batches, snapshots):
    """Return the number of batches of a pass, None for all."""
    if not callable(batches):
        return batches
    return checked_count('full_grad_batches', batches(snapshots),
                         'a callable that returns an int of 1 or more (here after %d snapshots)'
                         % snapshots)


def _copied(_, proximal):
    return dict(proximal) if isinstance(proximal, dict) else proximal


def _checked_batches(name, batches):
    return batches if batches is None or callable(batches) else checked_count(
        name, batches, 'None, an int of 1 or more or a callable that returns one')


_BOTH = MODULE, GLUON
SETTINGS = {
    'update_freq': Setting(
        (MODULE,), None, checked_count, InFile(), Agreed('update_freq (0 for alpha=0)'),
        'Epochs from one snapshot to the next, 1 or more.'),
    'loss_is_mean': Setting(
        _BOTH, None, functools.partial(checked_bool, or_none=True), InFile(), None),
    'batch_axis': Setting((GLUON,), 0, None, None, None),
    'full_grad_callback': Setting((MODULE,), None, checked_callbacks, None, None),
    'sparse_full_grad': Setting((MODULE,), False, checked_bool, InFile(), None),
    'store_snapshot_grads': Setting(_BOTH, False, checked_budget, InFile(), None),
    'alpha': Setting(
        _BOTH, 1.0, checked_alpha,
        InFile(lambda alpha: None if callable(alpha) else float(alpha),
               lost=(None, 'a schedule of alpha', 'it is 1')), None,
        'Coefficient of the variance reduction, a number in [0, 1] or a schedule of it. In a '
        'resumed run a schedule counts the updates before.'),
    'nonfinite': Setting(
        _BOTH, 'warn', functools.partial(checked_choice, choices=('warn', 'raise')), InFile(),
        None),
    'full_grad_batches': Setting(
        (MODULE,), None, _checked_batches,
        InFile(_fact_of_batches, _growing, (
            'schedule', 'a schedule of full_grad_batches', 'full gradients are over all batches')),
        Agreed('full_grad_batches (0 for None, the next value of a schedule)',
               lambda batches, snapshots: _next_batches(batches, snapshots) or 0),
        'Number of batches that `fit` computes a full gradient over, a schedule of it or None for '
        'all. In a resumed run a schedule counts the snapshots before.'),
    'updates_per_snapshot': Setting(
        (MODULE,), None, functools.partial(checked_count, or_none=True), InFile(),
        Agreed('updates_per_snapshot (0 for None)'),
        'Updates from one snapshot to the next; None if `update_freq` counts epochs.'),
    'full_grad_data': Setting(
        (MODULE,), None, functools.partial(checked_iterator, or_none=True),
        InFile(lambda data: data is not None, lambda fact: None, (
            True, 'full_grad_data',
            'full gradients are over the data of fit, every update_freq epochs')),
        Agreed('full_grad_data (1 if they are given, 0 if not)',
               lambda data, _: data is not None),
        'Data that `fit` computes full gradients over; None for its training data.'),
    'proximal': Setting(
        _BOTH, None, _copied, InFile(operators_as_json, operators_from_json, (
            None, 'a proximal operator of another class', 'there is none')), None),
    'next_states': Setting((MODULE,), None, None, InFile(), None),
    'tol': Setting(
        _BOTH, None, checked_positive, InFile(), Agreed('tol (0 for None)'),
        '`gradient_norm` at which training has converged; None if it does not end there.'),
    'local_steps': Setting(
        _BOTH, False, checked_bool, InFile(), Agreed('local_steps (0 for False)')),
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
        if front_end == MODULE and given.get('update_freq') is None:
            given['update_freq'] = 2 if given.get('updates_per_snapshot') is None else 1
        self.set(**given)

    def set(self, **given):
        """Check some settings, together with the others, and set them."""
        for name, value in given.items():
            check = SETTINGS[name].check
            given[name] = value if check is None else check(name, value)
        settings = {**vars(self), **given}
        alpha = settings['alpha']
        settings['is_plain'] = not callable(alpha) and alpha == 0
        if settings['full_grad_data'] is None and settings['updates_per_snapshot'] is not None:
            raise ValueError('full_grad_data must be a DataIter where updates_per_snapshot is '
                             'given, since a pass within an epoch must not move train_data, and '
                             'not None')
        if settings['store_snapshot_grads'] and settings['full_grad_data'] is not None:
            raise ValueError('full_grad_data must be None with store_snapshot_grads, since fit '
                             'trains on the stored batches, and not %r'
                             % (settings['full_grad_data'],))
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

    def alpha_after(self, updates):
        """Return α after this number of updates."""
        return (checked_alpha('alpha', self.alpha, updates) if callable(self.alpha)
                else float(self.alpha))

    def batches_after(self, snapshots):
        """Return the number of batches of a pass after a number of snapshots, None for all."""
        return _next_batches(self.full_grad_batches, snapshots)

    def facts(self):
        """Return what a checkpoint contains of this, as values of types that JSON supports."""
        return {name: setting.file.write(getattr(self, name))
                for name, setting in SETTINGS.items() if setting.file}

    def plan(self, snapshots):
        """Return the numbers that all workers must have alike, by what errors call them."""
        return {setting.agreed.name: setting.agreed.number(getattr(self, name), snapshots)
                for name, setting in SETTINGS.items() if setting.agreed}


def default_facts():
    """Return what an older checkpoint has of settings that were added later: the defaults."""
    return {name: setting.file.write(setting.default) for name, setting in SETTINGS.items()
            if setting.file}


def arguments_from(facts, given, warn):
    """Return the arguments of a constructor: those that are given, and for others the saved ones.

    Parameters
    ----------
    facts : dict
        What a checkpoint says.
    given : dict
        Arguments of the user.
    warn : callable
        Takes a message on a setting that the file cannot hold.
    """
    arguments = {}
    for name, setting in SETTINGS.items():
        if name in given or not setting.file:
            continue
        fact, lost = facts[name], setting.file.lost
        if lost and fact == lost[0]:
            warn('the checkpoint was saved with %s, which it cannot hold: give %s=, or %s'
                 % (lost[1], name, lost[2]))
            arguments[name] = setting.default
        else:
            arguments[name] = setting.file.read(fact)
    arguments.update(given)
    if arguments['full_grad_data'] is None:
        arguments['updates_per_snapshot'] = given.get('updates_per_snapshot')
    return arguments

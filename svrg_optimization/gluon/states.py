"""What a file of a trainer's states has: the optimizer's states and numbers, and the snapshot."""

import copy
import re

import numpy as np
from mxnet import util

from .._warn_once import warn
from ..checkpoint.files import with_tuples
from ..core.full_gradient import FullGradient
from ..rate.svrg_lbfgs import rule_of
from ..svrg_optimizer import update_counts
from .random_numbers import RandomNumbers


def packed(trainer):
    """Return the content of a file. Parameters are known by their place in the optimizer's states.
    """
    reference, snapshot, optimizer = trainer._reference, trainer._svrg.snapshot, trainer._optimizer
    scheduler, rule = optimizer.lr_scheduler, rule_of(optimizer)
    return {
        'names': reference.names, 'loss': reference.rows.kind, 'random': reference.numbers.state(),
        'was_random': reference.numbers.were_drawn,
        'optimizer': {
            'class': type(optimizer).__name__, 'numbers': _numbers(optimizer),
            'counts': update_counts(optimizer)['counts'],
            'states': {str(place): with_tuples(state)
                       for place, state in trainer._all_updaters[0].states.items()}},
        'scheduler': scheduler and {'class': type(scheduler).__name__,
                                    'state': rule.state() if rule else _numbers(scheduler)},
        'facts': {**snapshot.facts(), 'num_update': snapshot.num_update,
                  'num_taken': snapshot.num_taken},
        'snapshot': {
            'full_gradient': snapshot.full_gradient.pack(),
            'weights': {name: arrays[0] for name, arrays in reference.values().items()},
        } if snapshot.is_active else None}


def _numbers(owner):
    return {name: value for name, value in vars(owner).items()
            if value is None or isinstance(value, (bool, int, float, str, np.generic))}


def restoring(trainer, content, fname):
    """Return a function that restores what `packed` returned; until it is called nothing changes.

    A ValueError tells of a file of other parameters or of another optimizer.
    """
    reference, svrg, optimizer = trainer._reference, trainer._svrg, trainer._optimizer
    names, saved, snapshot = reference.names, content['optimizer'], content['snapshot']
    if _structure(content['names']) != _structure(names):
        raise ValueError('%s has states of other parameters, or in another order: %s, and not %s. '
                         'Give blocks their prefixes again' % (fname, content['names'], names))
    if saved['class'] != type(optimizer).__name__:
        raise ValueError('%s has states of the optimizer %s, and not of %s'
                         % (fname, saved['class'], type(optimizer).__name__))
    ours, weights, full_gradient = dict(zip(content['names'], names)), {}, None
    if snapshot:
        weights = {ours[name]: value.asnumpy() for name, value in snapshot['weights'].items()}
        reference.allocate()
        gradient = snapshot['full_gradient']
        gradient['shares'] = [{ours[name]: value for name, value in share.items()}
                              for share in gradient['shares']]
        full_gradient = FullGradient(reference.new_sum(gradient['batch_size']))
        theirs = {name: value.shape for name, value in weights.items()}
        shapes = {name: arrays[0].shape for name, arrays in reference.values().items()}
        if theirs != shapes or full_gradient.unpack(gradient):
            raise ValueError('%s has a snapshot of other parameters: of the shapes %s, and not %s'
                             % (fname, theirs, shapes))

    def restore():
        vars(optimizer).update(saved['numbers'], allow_np_array=util.is_np_array())
        for device in {0, *(context.device_id for context in trainer._devices)}:
            optimizer._all_index_update_counts[device] = {
                int(place): count for place, count in saved['counts'].items()}
        optimizer._set_current_context(0)
        for updater in trainer._all_updaters:
            updater.states = {int(place): copy.deepcopy(state)
                              for place, state in saved['states'].items()}
            updater.states_synced = dict.fromkeys(updater.states, False)
        _restore_scheduler(optimizer, content['scheduler'], trainer._proximal.by_name, ours)
        numbers = RandomNumbers(content['random'], content['was_random'])
        reference.restore(reference.rows.kind or content['loss'], numbers, weights)
        svrg.snapshot.replace(full_gradient, **content['facts'])

    return restore


def _restore_scheduler(optimizer, saved, proximal, ours):
    """Let an optimizer's scheduler go on; `ours` maps former names of parameters to others."""
    scheduler, rule = optimizer.lr_scheduler, rule_of(optimizer)
    if rule:
        rule.reset()
    if not (scheduler and saved):
        return
    if saved['class'] != type(scheduler).__name__:
        warn('the states were saved with a %s: the %s of this run begins anew'
             % (saved['class'], type(scheduler).__name__))
    elif rule:
        rule.load_state(saved['state'], proximal, ours)
    else:
        vars(scheduler).update(saved['state'])


def _structure(names):
    """Return names without numbers and their places, in order of creation, which Gluon counts."""
    created = sorted((re.split('[0-9]+', name), [int(digits) for digits in re.findall(
        '[0-9]+', name)], place) for place, name in enumerate(names))
    return [(words, place) for words, _, place in created]

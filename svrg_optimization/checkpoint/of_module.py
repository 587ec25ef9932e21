"""The checkpoint of a Module: ``prefix-0001.svrg``, beside the files that plain Module reads.

It has all that a run needs to go on bit-identically, so no other file has to match it.
"""

import copy
import functools
import json
import os
from typing import NamedTuple, Optional

import mxnet as mx

from .._argument_checks import check_epoch, checked_bool
from .._warn_once import warn
from ..core.full_gradient import FullGradient
from ..core.settings import arguments_from
from ..module.membership import servers_hold_states
from ..module.optimizer_states import (
    check_states_fit,
    devices_that_update,
    set_update_counts,
    updater_keys,
    updater_of,
)
from ..module.trained_module import TrainedModule
from ..svrg_optimizer import described
from .files import read, save_arrays, save_text, with_tuples, write, write_together

_SAVED_BY = 'SVRGModule'


def file_names(prefix, epoch):
    """Name the files of an epoch by kind; raise a TypeError or a ValueError for bad arguments."""
    check_epoch('epoch', epoch)
    return {kind: '%s-%04d.%s' % (os.fspath(prefix), epoch, kind)
            for kind in ('params', 'states', 'svrg')}


def name_of_symbol(prefix, bucket_key=None):
    """Name the file of a symbol as in Module, or as in BucketingModule for a bucket."""
    bucket = '' if bucket_key is None else '-%s' % (bucket_key,)
    return '%s%s-symbol.json' % (os.fspath(prefix), bucket)


def save(module, model, names, symbols, with_states, remove_amp_cast, **writers):
    """Save a module: all files as a whole or none.

    `model` is the module, or that of the default bucket, whose symbol is the first of `symbols`.
    `symbols` and `names` have the names of the files; `writers` write further kinds of files.
    """
    texts = {name: symbol.tojson(remove_amp_cast=remove_amp_cast)
             for name, symbol in symbols.items()}
    if with_states and servers_hold_states(model):
        model._svrg.warn_once('the states of the optimizer are on the servers, and are not saved: '
                             'with MXNET_UPDATE_ON_KVSTORE=0 the workers hold them')
        with_states = False
    elif with_states:
        writers['states'] = model.save_optimizer_states
    content = {'symbol': next(iter(texts.values())), **_content(module, model, with_states)}
    write_together({
        **{name: functools.partial(save_text, text) for name, text in texts.items()},
        names['params']: functools.partial(save_arrays, module.save_params),
        **{names[kind]: writer for kind, writer in writers.items()},
        names['svrg']: lambda name: write(name, _SAVED_BY, content)})  # last: it is complete then
    return with_states


def _content(module, model, with_states):
    rule, svrg, loaded = TrainedModule(model).rule, model._svrg, model._loaded
    snapshot = svrg.snapshot
    weights, auxiliary = module.get_params()
    content = {'settings': svrg.settings.facts(), 'num_update': snapshot.num_update,
               'num_taken': snapshot.num_taken, 'weights': weights, 'auxiliary': auxiliary,
               'snapshot': loaded.snapshot, 'optimizer': loaded.optimizer, 'rule': loaded.rule}
    if rule is not None:
        content['rule'] = rule.state()
    if model.optimizer_initialized:
        content['optimizer'] = {
            **model._membership.update_counts(model, snapshot.num_update, model._trainable),
            'class': described(model._optimizer, {})[0].__name__,
            'states': _states(model) if with_states else None,
            'were_on_servers': servers_hold_states(model)}
    if snapshot.is_active:
        weights, auxiliary = svrg.reference.params()
        content['snapshot'] = {
            'weights': weights, 'auxiliary': auxiliary, 'facts': snapshot.facts(),
            'full_gradient': snapshot.full_gradient.pack()}
    return content


def _states(module):
    """Map the name of each parameter that has a state to its states on all devices."""
    by_name, states = {}, updater_of(module).states
    for key, (name, _) in updater_keys(module).items():
        if key in states:
            by_name.setdefault(name, []).append(with_tuples(states[key]))
    return by_name


class PendingCheckpoint(NamedTuple):
    """Parts of a checkpoint that wait for the module's binding and its optimizer.

    Each method that restores a part returns what still waits.
    """

    name: str = ''
    snapshot: Optional[dict] = None
    optimizer: Optional[dict] = None
    rule: Optional[dict] = None
    with_states: bool = False

    @property
    def has_states(self):
        """Whether the optimizer that is installed next gets states."""
        return (self.with_states and self.optimizer is not None
                and self.optimizer['states'] is not None)

    def check_optimizer(self, optimizer):
        """Raise a ValueError if the states are those of another optimizer."""
        if self.has_states and self.optimizer['class'] != type(optimizer).__name__:
            raise ValueError('optimizer must be %s, whose states %s has, and not %s: '
                             'load_optimizer_states=False leaves them out'
                             % (self.optimizer['class'], self.name, type(optimizer).__name__))

    def restore_snapshot(self, svrg):
        """Activate the snapshot of a module that is bound for training."""
        saved = self.snapshot
        full_gradient = saved and FullGradient(svrg.reference.new_sum())
        lacking = saved and full_gradient.unpack(saved['full_gradient'])
        if lacking:
            svrg.warn_of_dropped_snapshot(lacking)
        elif saved:
            svrg.reference.executors.module.set_params(saved['weights'], saved['auxiliary'])
            svrg.snapshot.replace(full_gradient, **saved['facts'])
        return self._replace(snapshot=None)

    def restore_counts(self, wrapped, optimizer, optimizer_params, contexts):
        """Set the saved update counts in an optimizer, unless `begin_num_update` is given."""
        begins = ('begin_num_update' in dict(optimizer_params) if isinstance(optimizer, str)
                  else optimizer.begin_num_update > 0)
        if self.with_states and self.optimizer and not begins:
            set_update_counts(wrapped, self.optimizer,
                              {0, *(context.device_id for context in contexts)})

    def restore_optimizer(self, module, rule):
        """Set the saved states in an installed optimizer, and in its rule, if it has one."""
        if self.has_states:
            updater, saved = updater_of(module), self.optimizer['states']
            devices = devices_that_update(module)
            states = {key: copy.deepcopy(saved[name][place if len(saved[name]) == devices else 0])
                      for key, (name, place) in updater_keys(module).items()
                      if name in saved}
            check_states_fit(module, states, self.name)
            updater.states.update(states)
            updater.states_synced.update(dict.fromkeys(states, False))
        if rule is not None:
            rule.reset()
            if self.rule:
                rule.load_state(self.rule, module._proximal.by_name)
        return PendingCheckpoint(snapshot=self.snapshot)


class Checkpoint(NamedTuple):
    """What a module is made of, and what it restores later.

    `settings` are arguments of the constructor. `states` is the file of the optimizer's states,
    of a plain Module's checkpoint, or None.
    """

    symbol: mx.sym.Symbol
    arg_params: dict
    aux_params: dict
    settings: dict
    num_update: int = 0
    num_taken: int = 0
    loaded: PendingCheckpoint = PendingCheckpoint()
    states: Optional[str] = None


def load(prefix, epoch, with_states, given, bucket_key=None):
    """Load a Checkpoint, of this package or of plain Module.

    `given` are arguments of the constructor; a BucketingModule gives its default `bucket_key`.
    """
    names = file_names(prefix, epoch)
    if not isinstance(with_states, int):  # Module accepts an int as a bool
        with_states = checked_bool('load_optimizer_states', with_states)
    if not os.path.exists(names['svrg']):
        return _load_plain({**names, 'symbol': name_of_symbol(prefix, bucket_key)}, with_states,
                           given)
    content = read(names['svrg'], _SAVED_BY)
    optimizer = content['optimizer']
    if with_states and optimizer and optimizer['were_on_servers']:
        warn('%s was saved without the states of the optimizer, which were on servers: '
             'they begin anew' % names['svrg'])
    elif with_states and not (optimizer and optimizer['states'] is not None):
        raise ValueError('load_optimizer_states must be False: %s was saved without the states of '
                         'the optimizer' % names['svrg'])
    return Checkpoint(
        _network(content['symbol'], names['svrg']), content['weights'], content['auxiliary'],
        arguments_from(content['settings'], given), content['num_update'], content['num_taken'],
        PendingCheckpoint(names['svrg'], content['snapshot'], optimizer, content['rule'],
                          bool(with_states)))


def _network(text, name):
    """Return the symbol of a JSON, unless MXNet would call functions at addresses in the file."""
    def check(node):
        operator = node.get('op')
        # Their gradients take the same argument. No other operator of MXNet takes a pointer.
        if str(operator).endswith(('_Native', '_NDArray')):
            raise ValueError('%s must have no operator that calls a function by its address, and '
                             'has %r: MXNet would run code of the file' % (name, operator))
        return node

    graph = json.loads(text, object_hook=check)
    # Written anew: MXNet's parser may understand a forged text otherwise than Python's.
    return mx.sym.load_json(json.dumps(graph, ensure_ascii=False))


def _load_plain(names, with_states, given):
    for kind in ('symbol', 'params', *['states'] * bool(with_states)):
        if not os.path.exists(names[kind]):
            raise FileNotFoundError('the checkpoint has no file %s' % names[kind])
    warn('%s is not there: %s is loaded as the checkpoint of a plain Module, without settings, '
         'snapshot and counts of updates' % (names['svrg'], names['params']))
    symbol = _read(mx.sym.load, names['symbol'])
    saved = _read(mx.nd.load, names['params']) or {}  # MXNet returns a list without parameters
    if not isinstance(saved, dict) or any(key[:4] not in ('arg:', 'aux:') for key in saved):
        raise ValueError('%s is no file of parameters' % names['params'])
    params = ({key[4:]: value for key, value in saved.items() if key.startswith(kind)}
              for kind in ('arg:', 'aux:'))
    return Checkpoint(symbol, *params, {'update_freq': 1, **given},
                      states=names['states'] if with_states else None)


def _read(read_file, name):
    try:
        return read_file(name)
    except (mx.MXNetError, ValueError) as error:
        raise ValueError('%s is damaged, or no file of MXNet' % name) from error

"""The checkpoint of a Module: ``prefix-0001.svrg``, beside the files that Module itself writes.

It has all that a run needs to go on bit-identically, so no other file has to match it.
"""

import json
import os

import mxnet as mx

from .._warn_once import warn
from ..core.settings import arguments_from
from ..module import optimizer_states
from ..module.workers import servers_hold_states
from .files import read, write

_SAVED_BY = 'SVRGModule'


def save(module, prefix, epoch, with_states, remove_amp_cast):
    """Write the file of a module's run; return whether it has the optimizer's states."""
    model = module._default_bucket
    assert model.optimizer_initialized or not with_states, 'init_optimizer makes the states'
    if with_states and servers_hold_states(model):
        model._svrg.warn_once('the states of the optimizer are on the servers, and are not saved: '
                              'with MXNET_UPDATE_ON_KVSTORE=0 the workers hold them')
        with_states = False
    weights, auxiliary = module.get_params()
    state = {'symbol': model.symbol.tojson(remove_amp_cast=remove_amp_cast),
             'settings': model._svrg.settings.state(), 'arguments': {
                 'fixed_param_names': model._fixed_param_names,
                 'compression_params': model._compression_params},
             'weights': weights, 'auxiliary': auxiliary,
             'svrg': model._svrg.state(), 'optimizer': None, **model._waiting}
    if model.optimizer_initialized:
        state.update(optimizer=optimizer_states.state(model, with_states))
    write('%s-%04d.svrg' % (os.fspath(prefix), epoch), _SAVED_BY, state)
    return with_states


def read_checkpoint(prefix, epoch, with_states, bucket_key=None):
    """Return the state of a checkpoint, of this package or of plain Module, with its Symbol.

    A BucketingModule gives its default `bucket_key`.
    """
    name = '%s-%04d.svrg' % (os.fspath(prefix), epoch)
    if not os.path.exists(name):
        return _read_plain(os.fspath(prefix), epoch, with_states, bucket_key)
    state = read(name, _SAVED_BY)
    state['symbol'], optimizer = _network(state['symbol'], name), state['optimizer']
    if not with_states:
        state['optimizer'] = None
    elif optimizer and optimizer['were_on_servers']:
        warn('%s was saved without the states of the optimizer, which were on servers: '
             'they begin anew' % name)
    elif not optimizer or optimizer['states'] is None:
        raise ValueError('load_optimizer_states must be False: %s was saved without the states of '
                         'the optimizer' % name)
    return state


def arguments_of(state, given):
    """Return the arguments of a constructor: the given ones, and saved ones for the others."""
    return {**state['arguments'], **arguments_from(state['settings'], given)}


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


def _read_plain(prefix, epoch, with_states, bucket_key):
    bucket = '' if bucket_key is None else '-%s' % (bucket_key,)
    svrg, params, states = ('%s-%04d.%s' % (prefix, epoch, kind)
                            for kind in ('svrg', 'params', 'states'))
    symbol = '%s%s-symbol.json' % (prefix, bucket)
    for name in (symbol, params, *[states] * bool(with_states)):
        open(name, 'rb').close()  # its error names the file, unlike MXNet's
    warn('%s is not there: %s is loaded as the checkpoint of a plain Module, without settings, '
         'snapshot and counts of updates' % (svrg, params))
    weights, auxiliary = mx.model.load_params(prefix, epoch)
    return {'symbol': mx.sym.load(symbol), 'settings': {'update_freq': 1}, 'arguments': {},
            'weights': weights, 'auxiliary': auxiliary, 'svrg': None, 'optimizer': None,
            'file_of_states': states if with_states else None}

"""Calls with bad input, and the check that they change nothing.

A call takes a trained module and its problem.
"""

import os
import pickle

import mxnet as mx
import pytest

from svrg_optimization import SVRGBucketingModule, SVRGModule

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


class Data:
    """Batches as an iterator yields them, with what goes wrong given."""

    def __init__(self, *batches, raises=None, resets=None):
        self.batches, self.raises, self.resets = batches, raises, resets

    def reset(self):
        if self.resets:
            raise self.resets

    def __iter__(self):
        yield from self.batches
        if self.raises:
            raise self.raises


def batch(*shapes, label=(10,), pad=0):
    return mx.io.DataBatch([mx.nd.ones(shape) for shape in shapes],
                           None if label is None else [mx.nd.ones(label)], pad=pad)


GOOD = batch((10, 4))


def dropout(data):
    return mx.sym.Dropout(data)


def symbol_with(layer):
    output = mx.sym.FullyConnected(layer(mx.sym.Variable('data')), num_hidden=1, name='fc')
    return mx.sym.LinearRegressionOutput(output, mx.sym.Variable('label'), name='loss')


def made(**kwargs):
    kwargs = {'symbol': symbol_with(lambda data: data), 'label_names': ('label',),
              'update_freq': 1, **kwargs}
    return lambda module, problem: SVRGModule(**kwargs)


def bucketing(**kwargs):
    kwargs = {'sym_gen': lambda key: (symbol_with(lambda data: data), ('data',), ('label',)),
              'default_bucket_key': 1, 'update_freq': 1, **kwargs}
    return lambda module, problem: SVRGBucketingModule(**kwargs)


def full_grads(data):
    return lambda module, problem: module.update_full_grads(data)


def fit(data=None, **kwargs):
    def call(module, problem):
        return module.fit(problem.iterator() if data is None else data,
                          **{'eval_metric': 'mse', 'num_epoch': 3, 'begin_epoch': 2, **kwargs})
    return call


def attribute(name, value):
    return lambda module, problem: setattr(module, name, value)


def on(make, call):
    return lambda module, problem: call(make(problem), problem)


def unbound(problem):
    return problem.module(1)


def uninitialized(problem):
    module = problem.module(1)
    module.bind(problem.iterator().provide_data, problem.iterator().provide_label)
    return module


def for_inference(problem):
    module = problem.module(1)
    data = problem.iterator()
    module.bind(data.provide_data, data.provide_label, for_training=False)
    module.init_params()
    return module


def optimizer(**kwargs):
    return lambda module, problem: problem.bound().init_optimizer(**kwargs)


def state_of(module):
    """Return all that a failed call must leave as it is."""
    arg_params, aux_params = module.get_params()
    full_gradient = module._snapshot.full_gradient
    return {
        'weights': {name: value.asnumpy().tobytes()
                    for name, value in {**arg_params, **aux_params}.items()},
        'snapshot': {name: value.asnumpy().tobytes()
                     for name, value in module._mod_aux.get_params()[0].items()},
        'full gradient': (id(full_gradient), {name: value.asnumpy().tobytes() for name, value
                                              in module._param_dict[0].items()}),
        'optimizer': {key: state.asnumpy().tobytes() for key, state
                      in pickle.loads(module._updater.get_states()).items()},
        'counts': (module._snapshot.num_update, module._snapshot.taken_at,
                   module._snapshot.taken_at, module._optimizer.num_update),
        'settings': (module.update_freq, module.alpha, module.full_grad_batches),
        'files': {name: open(name, 'rb').read() for name in sorted(os.listdir())},
    }


def assert_refused(trained, call, error, message):
    """Check that a call is an error that changes nothing: training goes on as if it had not been.

    `trained` is that fixture.
    """
    module, problem = trained
    before = state_of(module)
    with pytest.raises(error, match=message):
        call(module, problem)
    after = state_of(module)
    for kind, value in before.items():
        assert after[kind] == value, kind
    module.fit(problem.iterator(), eval_metric='mse', begin_epoch=2, num_epoch=3)
    svrg = problem.svrg(**SETTINGS)
    problem.assert_weights(module, svrg.fit(3, 2))

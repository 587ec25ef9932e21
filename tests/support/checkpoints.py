"""Trainings that are saved and gone on with."""

from pathlib import Path

import mxnet as mx

from svrg_optimization import SVRGModule

SETTINGS = {'sgd': {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01},
            'adam': {'learning_rate': 0.05}}


def train(problem, module, begin, end, optimizer='sgd', prefix=None, kvstore='local', states=True,
          **params):
    callback = prefix and mx.callback.module_checkpoint(module, prefix,
                                                        save_optimizer_states=states)
    module.fit(problem.iterator(), eval_metric=[], begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), optimizer=optimizer, kvstore=kvstore,
               optimizer_params={**SETTINGS.get(optimizer, {}), **params},
               epoch_end_callback=callback)
    return module


def load(prefix, epoch, load_optimizer_states=True, **kwargs):
    return SVRGModule.load(prefix, epoch, load_optimizer_states, label_names=('label',), **kwargs)


def bits(module):
    return {name: value.asnumpy().tobytes() for name, value in module.get_params()[0].items()}


def bound(module, problem, **kwargs):
    train_data = problem.iterator()
    module.bind(train_data.provide_data, train_data.provide_label, **kwargs)
    return module


def content(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}

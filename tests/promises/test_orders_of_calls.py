"""After calls in any order a training is that in float64, or an error has come before a change."""

import copy

import mxnet as mx
import numpy as np
import pytest

import oracle
from problems import TWO_DEVICES, Problem, assert_close
from svrg_optimization import SVRGModule

PROBLEM = Problem('softmax', rows=37)
ROWS = [*oracle.batches_of(37, 10)[:3], np.arange(30, 37)]
OTHERS = {name: mx.nd.array(value + 0.3) for name, value in PROBLEM.weights.items()}
OPTIMIZERS = {'sgd': (oracle.Sgd, {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01}),
              'adam': (oracle.Adam, {'learning_rate': 0.02, 'wd': 0.01})}


class Calls:
    """Calls of a module that has made a step, and what they do in float64.

    `seen` has the weights and the rows of the latest `forward`.
    """

    def __init__(self, optimizer, contexts, folder):
        self.optimizer, self.contexts, self.file = optimizer, contexts, str(folder / 'saved')
        self.svrg, self.seen, (self.twin, self.rates) = PROBLEM.svrg(), None, OPTIMIZERS[optimizer]
        self.gradient = {name: 0 * value for name, value in PROBLEM.weights.items()}
        self.module = PROBLEM.bound(context=contexts)
        self.init_optimizer()
        self.update_full_grads()
        self.save()
        self.step_on(ROWS[2])

    def weights_are(self, arrays):
        self.svrg.weights = {name: np.float64(each.asnumpy()) for name, each in arrays.items()}

    def init_optimizer(self):
        self.module.init_optimizer('local', self.optimizer, self.rates, force_init=True)
        self.svrg.optimizer = self.twin(**self.rates, rescale=0.1)

    def step_on(self, rows):
        self.forward(rows)
        self.backward()
        self.update()

    def forward(self, rows=ROWS[0][:6]):
        self.module.forward(PROBLEM.batch(rows))
        self.seen = dict(self.svrg.weights), rows

    def backward(self):
        self.module.backward()
        svrg, (weights, rows) = self.svrg, self.seen
        self.gradient = svrg.gradients(weights, rows)
        if svrg.snapshot:
            then = svrg.gradients(svrg.snapshot, rows)
            self.gradient = {name: value - then[name] + len(rows) / 10 * svrg.full_gradient[name]
                             for name, value in self.gradient.items()}

    def update(self):
        self.module.update()
        self.svrg.optimizer.step(self.svrg.weights, self.gradient)

    def predict(self):
        self.module.predict(PROBLEM.iterator(8))
        self.seen = dict(self.svrg.weights), np.arange(32, 40) % 37

    def values(self):
        return {name: each.asnumpy() for name, each in self.module.get_params()[0].items()}

    def set_params(self):
        self.module.set_params(OTHERS, {}, allow_missing=True)
        self.weights_are(OTHERS)

    def init_params(self):
        self.module.init_params(arg_params=PROBLEM.arg_params(), force_init=True)
        self.weights_are(PROBLEM.arg_params())
        self.svrg.snapshot = None

    def update_full_grads(self):
        self.module.update_full_grads(PROBLEM.iterator())
        self.svrg.take_snapshot()

    def bind(self):
        data = PROBLEM.iterator()
        self.module.bind(data.provide_data, data.provide_label, force_rebind=True)
        self.seen, self.gradient = None, {name: 0 * each for name, each in self.gradient.items()}

    def reshape(self):
        self.module.reshape([('data', (12, 4))])
        self.module.reshape([('data', (10, 4))])

    def save(self):
        self.module.save_checkpoint(self.file, 1, True)
        self.saved = copy.deepcopy(self.svrg)

    def load(self):
        self.module = SVRGModule.load(self.file, 1, True, context=self.contexts,
                                      label_names=['label'])
        self.bind()
        self.init_optimizer()
        self.svrg = copy.deepcopy(self.saved)

    def check(self, *names):
        for name in names:
            try:
                getattr(self, name)()
            except RuntimeError as error:
                assert 'needs a forward' in str(error) and self.seen is None
        assert_close(self.values(), self.svrg.weights)
        for take in (lambda: None, self.update_full_grads):
            take()
            for rows in ROWS[2:]:  # a whole batch and a short one
                self.step_on(rows)
        assert_close(self.values(), self.svrg.weights)


NAMES = ('forward', 'backward', 'update', 'predict', 'values', 'set_params', 'init_params', 'save',
         'load', 'reshape', 'bind', 'init_optimizer', 'update_full_grads')


@pytest.mark.parametrize('first', NAMES)
@pytest.mark.parametrize('optimizer, contexts', [('sgd', mx.cpu()), ('adam', TWO_DEVICES)])
@pytest.mark.filterwarnings('ignore')
def test_two_calls_leave_steps_of_svrg(optimizer, contexts, first, tmp_path):
    for second in NAMES:
        Calls(optimizer, contexts, tmp_path).check('forward', first, second)


@pytest.mark.parametrize('name', ['backward', 'predict', 'save', 'bind', 'reshape'])
@pytest.mark.filterwarnings('ignore')
def test_calls_between_iterations_of_newton_cg_change_nothing(name, tmp_path):
    found = []
    for between in ((), ('forward', name)):
        calls = Calls('sgd', mx.cpu(), tmp_path)
        calls.module.init_optimizer(optimizer='newton_cg', optimizer_params={'wd': 0.01},
                                    force_init=True)
        for _ in range(2):
            calls.module.update_full_grads(PROBLEM.iterator())
            for call in between:
                getattr(calls, call)()
            before = calls.values()
            with pytest.raises(RuntimeError, match='newton_cg moves the weights'):
                calls.module.update()
            assert_close(calls.values(), before, 0)
        found.append(before)
    assert_close(*found)

"""Settings are in the signatures, the docstrings, the files and what workers compare."""

import inspect

import pytest

from blocks import Blocks
from problems import Problem
from svrg_optimization import SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.core.settings import Settings
from svrg_optimization.proximal import L1

# For each setting a value that is not its default.
OTHERS = {
    'update_freq': 3, 'loss_is_mean': False, 'alpha': 0.5, 'nonfinite': 'raise',
    'full_grad_batches': 3, 'proximal': L1(0.25), 'tol': 1e-3}
OF_MODULE = {'update_freq', 'full_grad_batches'}
SET_LATER = {'update_freq', 'alpha', 'full_grad_batches', 'tol'}


@pytest.mark.parametrize('name', inspect.signature(Settings).parameters)
@pytest.mark.parametrize('klass', [SVRGModule, SVRGBucketingModule, SVRGTrainer])
def test_a_setting_is_an_argument_that_is_documented(klass, name):
    parameters, is_taken = inspect.signature(klass).parameters, klass is not SVRGTrainer
    assert (name in parameters) == (is_taken or name not in OF_MODULE)
    if name not in parameters:
        return
    assert name == 'update_freq' or (
        parameters[name].default == inspect.signature(Settings).parameters[name].default)
    assert isinstance(getattr(klass, name, None), property) == (name in SET_LATER)
    assert klass is SVRGBucketingModule or '\n%s : ' % name in inspect.getdoc(klass)


@pytest.mark.parametrize('name', inspect.signature(Settings).parameters)
def test_checkpoints_have_each_setting_and_workers_compare_it(tmp_path, name):
    problem = Problem(rows=40)
    module = SVRGModule(problem.symbol, label_names=('label',), **{name: OTHERS[name]})
    data = problem.iterator()
    module.bind(data.provide_data, data.provide_label)
    module.init_params()
    module.save_checkpoint(str(tmp_path / 'model'), 1)
    loaded = SVRGModule.load(str(tmp_path / 'model'), 1, label_names=('label',))
    usual, saved, found = (each.state() for each in (
        Settings(), module._svrg.settings, loaded._svrg.settings))
    assert found == saved and {each for each in usual if usual[each] != saved[each]} == {name}
    assert Settings().agreed(0) != Settings(**{name: OTHERS[name]}).agreed(0)


@pytest.mark.parametrize('name', sorted(set(OTHERS) - OF_MODULE))
def test_a_trainer_has_each_setting(name):
    problem, given = Blocks(), {name: OTHERS[name]}
    trainer = problem.trainer(problem.net(), settings={}, **given)
    assert trainer._svrg.settings.state() == Settings(**given).state()

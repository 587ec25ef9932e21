"""Settings in signatures, docstrings, files and what workers compare, and what excludes what."""

import ast
import inspect
from pathlib import Path

import pytest

from blocks import Blocks
from problems import Problem, prepared
from svrg_optimization import SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.core import exclusions
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
    module = prepared(SVRGModule(problem.symbol, label_names=('label',), **{name: OTHERS[name]}),
                      problem.iterator())
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


# The table of features that exclude each other

PAIRS = [(feature, allowed % feature if '%' in allowed else allowed, other)
         for features, allowed, others, _ in exclusions.EXCLUSIONS
         for feature in features for other in others]


@pytest.mark.parametrize('feature, allowed, other', PAIRS)
def test_a_pair_is_refused_and_each_alone_is_not(feature, allowed, other):
    for unused in (None, False, 0, {}, ''):
        exclusions.check_together({feature: 'this'}, {other: unused})
        exclusions.check_together({feature: unused, other: 'that'})
    with pytest.raises(ValueError, match='^%s with %s, as .*, and not this$' % (allowed, other)):
        exclusions.check_together({feature: 'this'}, {other: True})


def test_each_feature_is_one_that_is_checked():
    package, table = Path(exclusions.__file__).parents[1], Path(exclusions.__file__)
    named = {node.value for file in package.glob('**/*.py') if file != table
             for node in ast.walk(ast.parse(file.read_text(encoding='utf-8')))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    features = {each for feature, _, other in PAIRS for each in (feature, other)}
    assert features - named == {exclusions.SERVERS}

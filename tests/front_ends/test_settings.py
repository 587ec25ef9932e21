"""The table of settings: each is in the signatures, the docstrings, the files and the plan."""

import inspect

import mxnet as mx
import pytest

from problems import Problem
from svrg_optimization import SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.core.settings import GLUON, MODULE, SETTINGS, Settings
from svrg_optimization.proximal import L1

# For each setting a value that is not its default, with what it needs beside it.
OTHERS = {
    'update_freq': {'update_freq': 3},
    'loss_is_mean': {'loss_is_mean': False},
    'batch_axis': {'batch_axis': 1},
    'sparse_full_grad': {'sparse_full_grad': True},
    'store_snapshot_grads': {'store_snapshot_grads': 4096},
    'alpha': {'alpha': 0.5},
    'nonfinite': {'nonfinite': 'raise'},
    'full_grad_batches': {'full_grad_batches': 3},
    'updates_per_snapshot': {'updates_per_snapshot': 5},
    'proximal': {'proximal': L1(0.25)},
    'tol': {'tol': 1e-3},
    'local_steps': {'local_steps': True},
}
FRONT_ENDS = {SVRGModule: MODULE, SVRGBucketingModule: MODULE, SVRGTrainer: GLUON}


def text(value):
    """Return what two equal values have in common."""
    return repr(sorted(vars(value).items()) if hasattr(value, '__dict__') else value)


@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.parametrize('klass', FRONT_ENDS)
def test_signatures_and_attributes_are_the_table(klass, name):
    setting = SETTINGS[name]
    is_taken = FRONT_ENDS[klass] in setting.front_ends
    parameters = inspect.signature(klass).parameters
    assert (name in parameters) == is_taken
    if is_taken:
        assert parameters[name].default == setting.default
        assert isinstance(vars(klass).get(name), property) == bool(setting.attribute)


@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.parametrize('klass', [SVRGModule, SVRGTrainer])
def test_docstrings_have_each_setting(klass, name):
    lines = inspect.getdoc(klass).splitlines()
    assert any(line.startswith(name + ' :') for line in lines) == (
        FRONT_ENDS[klass] in SETTINGS[name].front_ends)


@pytest.mark.parametrize('name', [name for name, setting in SETTINGS.items()
                                  if MODULE in setting.front_ends])
def test_a_checkpoint_has_each_setting(tmp_path, name, recwarn):
    problem = Problem(rows=40)
    module = SVRGModule(problem.symbol, label_names=('label',), **OTHERS[name])
    data = problem.iterator()
    module.bind(data.provide_data, data.provide_label)
    module.init_params()
    module.save_checkpoint(str(tmp_path / 'model'), 1)
    loaded = SVRGModule.load(str(tmp_path / 'model'), 1, label_names=('label',))
    saved, value = (text(getattr(each._svrg.settings, name)) for each in (module, loaded))
    is_saved = SETTINGS[name].file is not None
    assert (saved == value) == is_saved
    assert saved != text(Settings(MODULE).__dict__[name])


@pytest.mark.parametrize('name', [name for name, setting in SETTINGS.items() if setting.agreed])
def test_workers_compare_what_must_be_alike(name):
    usual, other = Settings(MODULE), Settings(MODULE, **OTHERS[name])
    labels = [label for label in usual.plan(0) if label.split()[0].split('.')[0] == name]
    assert len(labels) == len(SETTINGS[name].agreed)
    assert all(usual.plan(0)[label] != other.plan(0)[label] for label in labels)
    assert all(isinstance(number, (int, float)) for number in other.plan(3).values())


@pytest.mark.parametrize('cell, without', [
    ('check', {'batch_axis'}), ('file', {'batch_axis'}),
    ('agreed', {'batch_axis', 'store_snapshot_grads'}),
    ('attribute', {'batch_axis', 'local_steps', 'loss_is_mean',
                   'nonfinite', 'proximal', 'sparse_full_grad', 'store_snapshot_grads'})])
def test_what_a_setting_lacks_is_meant(cell, without):
    """A new one has all cells, or is named here."""
    assert {name for name, setting in SETTINGS.items() if not getattr(setting, cell)} == without


@pytest.mark.parametrize('make', [
    lambda: SVRGModule(Problem().symbol, tolerance=1),
    lambda: SVRGBucketingModule(lambda _: (Problem().symbol, ('data',), ('label',)), 1,
                                tolerance=1),
    lambda: SVRGTrainer(mx.gluon.nn.Dense(1, in_units=1).collect_params(), 'sgd',
                        objective=len, tolerance=1)])
def test_an_unknown_setting_is_refused(make):
    with pytest.raises(TypeError, match="takes no argument 'tolerance': its settings are .*tol"):
        make()

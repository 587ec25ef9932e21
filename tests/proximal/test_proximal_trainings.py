"""Proximal SVRG against float64, and its checkpoints."""

import warnings

import mxnet as mx
import numpy as np
import pytest

from own_operators import Cap
from problems import Problem
from svrg_optimization import SVRGModule
from svrg_optimization.proximal import L1, Box


def test_an_operator_is_for_the_weights_with_weight_decay():
    """A wd_mult of the symbol has the last word; gammas and fixed weights have no operator."""
    variable = mx.sym.Variable
    data = mx.sym.BatchNorm(variable('data'), name='norm', fix_gamma=False)
    data = mx.sym.FullyConnected(data, num_hidden=4, name='one')
    for name, weight in (('two', variable('two_weight', wd_mult=0.)),
                         ('three', variable('w', wd_mult=2., init=mx.init.One()))):
        data = mx.sym.FullyConnected(data, weight, num_hidden=4, name=name)
    data = mx.sym.FullyConnected(data, num_hidden=1, name='four')
    module = SVRGModule(mx.sym.LinearRegressionOutput(data, variable('label')), update_freq=1,
                        label_names=('label',), fixed_param_names=['four_weight'],
                        proximal=Box(-0.01, 0.01), alpha=0)
    module.bind([('data', (4, 3))], [('label', (4,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={'learning_rate': 1e-9})
    module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 3))], [mx.nd.ones((4,))]))
    module.update()
    bounded = {name for name, value in module.get_params()[0].items()
               if np.abs(value.asnumpy()).max() < 0.1 and not name.endswith(('bias', 'beta'))}
    assert bounded == {'one_weight', 'w'}


@pytest.mark.parametrize('proximal', [Cap(0.5), {'fc_weight': L1(0.1), 'fc_bias': Cap(0.5)}])
def test_own_operators_are_not_saved(tmp_path, proximal):
    prefix = str(tmp_path / 'model')
    Problem().bound(proximal=proximal).save_checkpoint(prefix, 1)
    with pytest.warns(UserWarning, match='give proximal='):
        assert not SVRGModule.load(prefix, 1, label_names=('label',))._proximal.by_name
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        for given in (L1(0.2), None):
            SVRGModule.load(prefix, 1, label_names=('label',), proximal=given)

"""SVRGTrainer trains mx.np arrays as it trains mx.nd arrays."""

import contextlib
from pathlib import Path

import mxnet as mx
import pytest

from blocks import TWO_DEVICES, Blocks, as_blocks_take, assert_weights, train, weights_of
from processes import run_python

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.nd_arrays


@contextlib.contextmanager
def arrays_of(kind):
    with contextlib.ExitStack() as stack:
        if kind == 'np':
            stack.enter_context(mx.util.np_shape(True))
            stack.enter_context(mx.util.np_array(True))
        yield


@pytest.mark.process
@pytest.mark.slow
def test_the_tests_of_gluon_pass_with_mx_np_arrays():
    """Those that MXNet cannot run with them have the marker nd_arrays."""
    result = run_python('-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-m', 'not slow',
                        str(HERE), TEST_ARRAYS='np')
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize('contexts, settings', [
    (None, {}), (TWO_DEVICES, {}), (None, {'num_workers': 1})])
def test_training_is_svrg(contexts, settings):
    problem = Blocks('perceptron', rows=37)
    with arrays_of('np'):
        net = problem.net(contexts or mx.cpu())
        train(problem.trainer(net), problem.loader(**settings), 4, contexts=contexts)
        assert isinstance(net[0].weight.list_data()[0], mx.np.ndarray)
        assert_weights(net, problem.oracle(4))


@pytest.mark.parametrize('kinds', [('nd', 'np'), ('np', 'nd')])
def test_a_run_goes_on_with_the_other_kind_of_arrays(tmp_path, kinds):
    problem, path, weights = Blocks('perceptron'), str(tmp_path / 'states'), []
    for kind, begin, end in zip(kinds, (0, 3), (3, 6)):
        with arrays_of(kind):
            net = problem.net()
            trainer = problem.trainer(net)
            for param, value in zip(net.collect_params().values(), weights):
                param.set_data(as_blocks_take(value))
            if begin:
                trainer.load_states(path)
            train(trainer, problem.loader(), end, begin=begin)
            trainer.save_states(path)
            weights = list(weights_of(net).values())
            assert_weights(net, problem.oracle(end))

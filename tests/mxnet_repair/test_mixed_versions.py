"""Clusters and checkpoints of several Pythons and NumPys.

The others are those whose environments ``make`` has made: ``make
test-pythons`` makes them all.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster import PROBLEM, run_workers
from problems import Problem, assert_close
from processes import ROOT, printed_by
from unions import train_on_union

OTHERS = sorted((stamp.parent for stamp in ROOT.glob('.venv/*/test.installed')
                 if stamp.parent != Path(sys.prefix).resolve()),
                key=lambda folder: [int(number) for number in re.findall(r'\d+', folder.name)])
others = pytest.mark.parametrize('other', [
    pytest.param(str(folder / 'bin' / 'python'), id=folder.name,
                 marks=[pytest.mark.exhaustive] if number else [])
    for number, folder in enumerate(OTHERS)
] or [pytest.param(None, marks=pytest.mark.skip(
    reason='there is no environment of another Python: make one, as make test-pythons does'))])

TRAIN = """
import sys
import numpy as np
from checkpoints import load, train
from problems import Problem

begin, end, optimizer, prefix, results = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
problem, given = Problem('perceptron'), {'learning_rate': np.float64(0.05)}
if optimizer == 'newton_cg':
    problem, given = Problem(), {}
module = load(prefix, begin) if begin else problem.module(2)
train(problem, module, begin, end, optimizer, prefix, wd=np.float32(0.01), **given)
np.savez(results, **{name: value.asnumpy() for name, value in module.get_params()[0].items()})
"""


def train(python, *arguments):
    """Train in a Python of its own, from one epoch to another; return the weights' bits."""
    printed_by('-c', TRAIN, *arguments, python=python)
    with np.load(arguments[-1]) as file:
        return {name: file[name].tobytes() for name in file.files}


@others
@pytest.mark.cluster
@pytest.mark.slow
def test_a_cluster_trains_with_servers_of_another_python(tmp_path, other):
    sizes, sgd = [28, 29], {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.01}
    given = {name: np.float64(value) for name, value in sgd.items()}
    results = run_workers('fit', tmp_path, 2, 2, python=other, problem=PROBLEM, sizes=sizes,
                          batch_size=8, num_epoch=3, update_freq=2, params=given)
    expected = train_on_union(Problem(**PROBLEM), sizes, 8, 3, 2, **sgd)
    for result in results:
        assert_close(result['weights'], expected)


@others
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['adam', 'newton_cg'])
def test_training_goes_on_from_a_checkpoint_of_another_python(tmp_path, other, optimizer):
    """Training goes on from it to the same bits, in either direction."""
    whole = train(sys.executable, 0, 5, optimizer, tmp_path / 'whole', tmp_path / 'result.npz')
    for number, (first, second) in enumerate([(other, sys.executable), (sys.executable, other)]):
        prefix = tmp_path / str(number)
        train(first, 0, 3, optimizer, prefix, tmp_path / 'result.npz')
        assert train(second, 3, 5, optimizer, prefix, tmp_path / 'result.npz') == whole

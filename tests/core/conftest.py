"""Fixtures that list what the algorithm does."""

import mxnet as mx
import pytest

from problems import Problem
from stepping import Training
from svrg_optimization.core.side_by_side import SideBySide
from svrg_optimization.core.snapshot_module import SnapshotModule

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.fixture(params=[mx.cpu(), TWO_DEVICES], ids=['one device', 'two devices'])
def training(request):
    return Training(Problem('perceptron', rows=37), context=request.param)


@pytest.fixture
def merged(monkeypatch):
    """List how many batches each run of merged batches has."""
    counts = []
    run = SnapshotModule.gradients_of_merged
    monkeypatch.setattr(SnapshotModule, 'gradients_of_merged', lambda auxiliary, batches: (
        counts.append(len(batches)), run(auxiliary, batches))[1])
    return counts


@pytest.fixture
def runs(monkeypatch):
    """Count how often gradients at the snapshot are computed outside of a pass."""
    calls = []
    compute = SnapshotModule.run_on_inputs_of
    monkeypatch.setattr(SnapshotModule, 'run_on_inputs_of',
                        lambda *args: (calls.append(None), compute(*args)))
    return calls


@pytest.fixture
def runs_side_by_side(monkeypatch):
    """List how many batches each run of copies side by side has."""
    counts = []
    run = SideBySide.run
    monkeypatch.setattr(SideBySide, 'run', lambda copies, batches, module: (
        counts.append(len(batches)), run(copies, batches, module)))
    return counts

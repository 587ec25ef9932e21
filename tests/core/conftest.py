"""Fixtures that list what the algorithm does."""

import mxnet as mx
import pytest

from problems import Problem
from stepping import Training
from svrg_optimization.module.executors import Executors
from svrg_optimization.module.reference import ModuleReference

TWO_DEVICES = [mx.cpu(0), mx.cpu(1)]


@pytest.fixture(params=[mx.cpu(), TWO_DEVICES], ids=['one device', 'two devices'])
def training(request):
    return Training(Problem('perceptron', rows=37), context=request.param)


@pytest.fixture
def merged(monkeypatch):
    """List how many batches each run of several has."""
    counts, run = [], Executors.run

    def counted(executors, module, batch, *others):
        if getattr(batch, 'number', 1) > 1:
            counts.append(batch.number)
        return run(executors, module, batch, *others)

    monkeypatch.setattr(Executors, 'run', counted)
    return counts


@pytest.fixture
def runs(monkeypatch):
    """Count how often gradients at the snapshot are computed outside of a pass."""
    calls = []
    compute = ModuleReference.gradients_of_step
    monkeypatch.setattr(ModuleReference, 'gradients_of_step',
                        lambda *args: (calls.append(None), compute(*args))[1])
    return calls

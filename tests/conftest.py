"""Hooks and fixtures for all tests."""

import collections
import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import traceback

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import _LIB, check_call

import checkpoints
from problems import Problem
from stepping import Training

collect_ignore = ['support']
WITH_NP_ARRAYS = os.environ.get('TEST_ARRAYS') == 'np'  # a test runs those of Gluon so

MISSING = re.compile(  # packages of some tests
    "No module named '(hypothesis|matplotlib|nbclient|psutil|scipy|sklearn)'")


def pytest_addoption(parser):
    parser.addoption('--last-bits', type=int, default=0, metavar='SEED', help=(
        "change the last bits of the tests' float32 data, as another processor does those of sums"))


def pytest_configure(config):
    """Let pytest-xdist begin with the first group, and not with that of the most tests."""
    config.option.loadscopereorder = False
    if config.option.last_bits:
        change_last_bits(config.option.last_bits)
    if WITH_NP_ARRAYS:
        mx.npx.set_np()


def change_last_bits(seed):
    """Let mx.nd.array make matrices whose float32 numbers are up to one unit beside those given."""
    made = mx.nd.array

    def array(source_array, *args, **kwargs):
        result = made(source_array, *args, **kwargs)
        if (isinstance(source_array, np.ndarray) and source_array.dtype.kind == 'f'
                and result.dtype == np.float32 and result.stype == 'default' and result.ndim > 1):
            by = np.random.RandomState(seed + result.size).randint(-1, 2, result.shape)
            result[:] = made(result.asnumpy() * (1 + np.float32(2 ** -23) * by.astype('f4')))
        return result

    for name, module in list(sys.modules.items()):
        if name.startswith('mxnet') and getattr(module, 'array', None) is made:
            module.array = array


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Give the clusters of a folder to one process of pytest-xdist, hosts too, and each other test.

    Clusters and hosts take longest, and so they come first. The cases of a test stay together: by
    files, one process was left with the longest file at the end.
    """
    def group_of(item):
        if item.get_closest_marker('cluster'):
            return 0, 'clusters of ' + item.path.parent.name
        if item.get_closest_marker('hosts'):
            return 1, 'hosts'
        return 2, '%s::%s' % (item.path, getattr(item, 'originalname', item.name))

    if WITH_NP_ARRAYS:
        items[:] = [item for item in items if not item.get_closest_marker('nd_arrays')]
    if config.option.last_bits:
        items[:] = [item for item in items if not item.get_closest_marker('exact_data')]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)[1]))
    items.sort(key=lambda item: group_of(item)[0])


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    """Skip the files that import a package of the tests which is not installed."""
    report = (yield).get_result()
    missing = report.failed and MISSING.search(str(report.longrepr))
    if missing:
        report.outcome = 'skipped'
        report.longrepr = str(collector.path), 0, 'Skipped: needs ' + missing[1]


def pytest_terminal_summary(terminalreporter):
    """Say at the end what was skipped on this machine: the reasons say what would make it run."""
    skipped = collections.Counter(
        report.longrepr[2].replace('Skipped: ', '')
        for report in terminalreporter.stats.get('skipped', ()))
    if skipped:
        terminalreporter.line('Skipped on this machine: ' + '; '.join(
            '%d (%s)' % (number, reason) for reason, number in skipped.items()))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    """Wait for MXNet's threads before pytest writes the environment for the next phase.

    They read it (oneDNN does), and getenv beside setenv in another thread can crash.
    """
    outcome = yield
    with contextlib.suppress(mx.MXNetError):  # of what failed on purpose
        mx.nd.waitall()
    missing = MISSING.search(str(outcome.excinfo and outcome.excinfo[1]))
    if missing:
        outcome.force_exception(pytest.skip.Exception('needs ' + missing[1]))


@pytest.fixture(autouse=True)
def seeded():
    """Begin each test with the same random numbers, whichever ran before it in this process."""
    np.random.seed(0)
    mx.random.seed(0)


@pytest.fixture
def signals_are_heard():
    """Let this process and what it starts hear signals, also in the background or below nohup."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / 'model')


@pytest.fixture(scope='session')
def saved_once(tmp_path_factory):
    """Save a checkpoint after each of three epochs, the snapshot being that of epoch 2 at last."""
    folder, problem = tmp_path_factory.mktemp('saved'), Problem('softmax', rows=37)
    checkpoints.train(problem, problem.module(2), 0, 3, prefix=str(folder / 'model'))
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    """Return the prefix of copies of these checkpoints."""
    for file in saved_once.iterdir():
        shutil.copy(str(file), str(tmp_path))
    return str(tmp_path / 'model')


PINNED = 3  # memory that a GPU can read, too
MAY_MIX = '_copyto'


def context_of(handle):
    kind, number = ctypes.c_int(), ctypes.c_int()
    check_call(_LIB.MXNDArrayGetContext(ctypes.c_void_p(handle), ctypes.byref(kind),
                                        ctypes.byref(number)))
    return kind.value, number.value


def name_of(creator):
    name = ctypes.c_char_p()
    check_call(_LIB.MXSymbolGetAtomicSymbolName(creator, ctypes.byref(name)))
    return name.value.decode()


@pytest.fixture
def mixtures(monkeypatch):
    """List the operators that get or give arrays of several contexts, and who calls them."""
    invoke, found = _LIB.MXImperativeInvokeEx, []

    def watch(creator, num_inputs, inputs, num_outputs, outputs, *rest):
        status = invoke(creator, num_inputs, inputs, num_outputs, outputs, *rest)
        handles = inputs[:num_inputs.value] + outputs._obj[:num_outputs._obj.value]
        contexts = {context for context in map(context_of, handles) if context[0] != PINNED}
        if status == 0 and len(contexts) > 1 and name_of(creator) != MAY_MIX:
            found.append((name_of(creator), sorted(contexts),
                          ''.join(traceback.format_stack(limit=6))))
        return status

    monkeypatch.setattr(_LIB, 'MXImperativeInvokeEx', watch)
    yield found
    mx.nd.waitall()


@pytest.fixture(params=[mx.cpu(), [mx.cpu(0), mx.cpu(1)]], ids=['one device', 'two devices'])
def training(request):
    return Training(Problem('perceptron', rows=37), context=request.param)

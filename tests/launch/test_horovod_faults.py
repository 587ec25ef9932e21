"""How a job of Horovod ends when a rank fails or leaves, and how it goes on."""

import os
import re
import signal
import sys
import time

import numpy as np
import psutil
import pytest

from cluster import PROBLEM, is_running
from horovod_jobs import horovodrun, job_of_checks, needs_horovod, run_checks
from jobs import TRAIN, last_checkpoint, weights
from oracle import train_on_union
from problems import Problem, assert_close

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]
SIZES, SETTINGS = [27, 32], {'learning_rate': 0.1, 'momentum': 0.5}
GIVEN = {**PROBLEM, 'rows': sum(SIZES)}


def usual(how, where):
    is_usual = (how, where) == ('exit', 'pass')
    return pytest.param(how, where, marks=[] if is_usual else pytest.mark.exhaustive)


@pytest.mark.parametrize('how, where', [usual(how, where) for how in ('raise', 'kill', 'exit')
                                        for where in ('step', 'pass')])
def test_a_rank_that_leaves_ends_the_job_which_goes_on_later(tmp_path, how, where):
    given = {'directory': tmp_path, 'problem': GIVEN, 'sizes': SIZES, 'settings': SETTINGS,
             'where': where}
    with job_of_checks(tmp_path, [('leaves', 'leaving', {**given, 'how': how})]) as running:
        running.wait_for('rank 1 is process')
        processes = running.processes().values()
        assert running.exit_status() != 0, running.output
        ended = time.time()
        assert not any(map(is_running, processes))
    began = float(re.search(r'leaves at (\S+)$', running.output, re.MULTILINE)[1])
    assert ended - began < 5 * max(1, os.getloadavg()[0] / os.cpu_count()), running.output
    assert ('ValueError: the reason' in running.output) == (how == 'raise')
    found = run_checks(tmp_path, [('goes on', 'leaving', {**given, 'how': None})])['goes on']
    expected = train_on_union(Problem(**GIVEN), SIZES, 8, 6, 2, **SETTINGS)
    for begin, trained in found:
        assert begin in (3, 4)  # the last checkpoint may not be whole
        assert_close(trained, expected)


def test_the_example_ends_with_a_rank_that_is_killed_and_resumes(tmp_path):
    model, epochs = tmp_path / 'model', 8

    def start(prefix, *arguments):
        return horovodrun([TRAIN, '--kv-store', 'horovod', '--prefix', prefix, '--epochs', epochs,
                           '--batch-size', 10, '--momentum', 0.8, *arguments])

    def run_to_end(running):
        with running:
            assert running.exit_status() == 0 and 'Traceback' not in running.output, running.output
        return running.output

    run_to_end(start(tmp_path / 'whole'))
    with start(model, '--log-every', 1) as running:
        running.wait_for(r'Epoch\[0\]')
        workers = [process for process in psutil.Process(running._process.pid).children(True)
                   if str(TRAIN) in process.cmdline() and process.exe() == os.path.realpath(
                       sys.executable)]
        running.wait_for(r'Epoch\[3\] Batch \[1')
        os.kill(workers[-1].pid, signal.SIGKILL)
        assert running.exit_status(20) != 0
        assert not any(map(is_running, workers))
    last = last_checkpoint(model)
    assert 2 <= last < epochs
    output = run_to_end(start(model, '--resume'))
    assert 'rank 1 of 2: 898 rows, from epoch %d on' % last in output, output
    resumed, whole = (weights(tmp_path / name, epochs) for name in ('model', 'whole'))
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)

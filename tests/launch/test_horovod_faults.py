"""How a job of Horovod ends when a rank is killed, and how it goes on."""

import os
import signal
import sys

import numpy as np
import psutil
import pytest

from cluster import is_running
from horovod_jobs import horovodrun, needs_horovod
from jobs import TRAIN, last_checkpoint, weights

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]


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

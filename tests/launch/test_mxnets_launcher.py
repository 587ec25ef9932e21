"""Jobs that MXNet's own launcher starts."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import mxnet
import pytest

from cluster import HERE, ROOT
from processes import LIGHT

LAUNCHER = Path(mxnet.__file__).parent / 'tools' / 'launch.py'
TRAIN = '''
import mxnet as mx
from problems import Problem

problem, kvstore = Problem(), mx.kv.create('dist_sync')
problem.module().fit(problem.iterator(), kvstore=kvstore, eval_metric='mse', num_epoch=2)
kvstore._barrier()
print('rank %d has ended' % kvstore.rank, flush=True)
'''


def test_mxnets_launcher_has_the_name_that_python_removed():
    tracker = importlib.import_module('dmlc_tracker.tracker')
    thread = tracker.Thread(target=print)
    thread.setDaemon(True)
    assert not thread.isAlive() and thread.daemon


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_of_mxnets_launcher_runs_to_its_end(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(TRAIN)
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('DMLC_', 'PS_', 'MXNET_'))}
    environment.update(PYTHONPATH=os.pathsep.join([LIGHT, str(HERE), str(ROOT)]),
                       DMLC_INTERFACE='lo', MXNET_SUBGRAPH_VERBOSE='0', OMP_NUM_THREADS='1')
    with subprocess.Popen(
            [sys.executable, str(LAUNCHER), '-n', '2', '-s', '1', '--launcher', 'local',
             sys.executable, str(script)], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True) as running:
        try:
            output, _ = running.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it leaves its workers behind
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0 and 'Traceback' not in output, output
    assert all('rank %d has ended' % rank in output for rank in (0, 1)), output

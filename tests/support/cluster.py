"""Real ps-lite clusters on the loopback device, for the tests."""

import contextlib
import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from mpi import AS_ROOT, BESIDE, MPIRUN, ROLE
from processes import LIGHT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 120
PROBLEM = {'kind': 'perceptron', 'rows': 57, 'features': 6}


class Job:
    """A job that a command runs, and what it prints.

    Used as a context manager it leaves no process behind.
    """

    def __init__(self, command, environment):
        self._printed = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, env=environment, stdout=self._printed,
                                         stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        left = self.processes().values()
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        for process in [*left, self._process]:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self._process.wait()

    @property
    def output(self):
        return Path(self._printed.name).read_text(errors='replace')

    def processes(self):
        """Return the processes that run now, by their ranks."""
        found = {}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    variables = process.environ()
                    rank = variables.get('OMPI_COMM_WORLD_RANK', variables.get('HOROVOD_RANK'))
                    if rank is not None and 'python' in process.name():
                        found.setdefault(int(rank), process)
        return found

    def wait_for(self, pattern, seconds=SECONDS):
        """Wait until a line is printed that a pattern matches."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output):
            assert time.monotonic() < deadline and self._process.poll() is None, self.output
            time.sleep(0.05)

    def send(self, number):
        """Send a signal to the command."""
        self._process.send_signal(number)

    def exit_status(self, seconds=SECONDS):
        """Wait for the end of the job."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError('the job did not end:\n' + self.output) from None


def started(command, **environment):
    """Start a command that runs a job, with what the tests' processes need in its environment."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(('DMLC_', 'PS_', 'MXNET_'))}
    paths = [LIGHT, str(HERE), str(ROOT), inherited.get('PYTHONPATH', '')]
    inherited.update(PYTHONPATH=os.pathsep.join(filter(None, paths)), MXNET_SUBGRAPH_VERBOSE='0',
                     PATH=inherited.get('PATH', os.defpath) + os.pathsep + BESIDE,
                     MXNET_STORAGE_FALLBACK_LOG_VERBOSE='0', OMP_NUM_THREADS='1')
    inherited.update(environment)
    return Job([*map(str, command)], {name: value for name, value in inherited.items()
                                      if value is not None})


def job(*script, workers=2, servers=1, python=sys.executable, **environment):
    """Start a script as the workers of a cluster, whose servers `python` runs."""
    if MPIRUN is None:
        pytest.skip("needs Open MPI's mpirun")
    role = [*ROLE, '-s', servers, *script]
    return started([MPIRUN, '--host', 'localhost:%d' % (1 + servers + workers), '--bind-to', 'none',
                    '--tag-output', '-np', 1 + servers, python, *role,
                    ':', '-np', workers, sys.executable, *role], **{**AS_ROOT, **environment})


needs_horovod = pytest.mark.skipif(importlib.util.find_spec('horovod') is None,
                                   reason='needs Horovod: make horovod')


def horovodrun(*script, workers=2):
    """Start a script as the workers of Horovod."""
    return started([Path(BESIDE) / 'horovodrun', '--gloo', '-np', workers, sys.executable,
                    *script])


def is_running(process):
    """Tell whether a process of psutil has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_ended(processes, seconds=15):
    deadline = time.monotonic() + seconds
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


def run_checks(directory, checks, start, workers=2, kind='dist_sync'):
    """Make checks in one job, each a name, a function of workers.py and its arguments.

    Returns for each check the results, in the order of ranks, and fails on any traceback in any
    role's output.
    """
    results = [Path(directory) / ('result-%d' % rank) for rank in range(workers)]
    for result in results:
        result.unlink(missing_ok=True)
    (Path(directory) / 'checks').write_bytes(pickle.dumps((kind, checks)))
    with start(HERE / 'workers.py', directory, workers=workers) as running:
        status = running.exit_status()
    assert status == 0 and 'Traceback' not in running.output, running.output
    of_ranks = [pickle.loads(result.read_bytes()) for result in results]
    return {name: [found[name] for found in of_ranks] for name in of_ranks[0]}


def run_workers(scenario, tmp_path, workers=2, servers=1, environment=(), python=sys.executable,
                kind='dist_sync', **arguments):
    """Make one check in a cluster, whose servers are `python`'s; return its results by rank."""
    start = functools.partial(job, servers=servers, python=python, **dict(environment))
    return run_checks(tmp_path, [(None, scenario, arguments)], start, workers, kind)[None]

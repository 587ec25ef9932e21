"""Jobs of Horovod on this machine."""

import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

from cluster import HERE, started
from mpi import AS_ROOT, MPIRUN

needs_horovod = pytest.mark.skipif(importlib.util.find_spec('horovod') is None,
                                   reason='needs Horovod: make horovod')


def horovodrun(command, workers=2):
    """Start a Python script with its arguments as the workers of Horovod."""
    return started([str(Path(sys.executable).with_name('horovodrun')), '--gloo', '-np',
                    str(workers), sys.executable, *map(str, command)])


def mpirun(command, workers=2):
    """Start a Python script with its arguments as the workers of Horovod, by mpirun."""
    return started([MPIRUN, '--bind-to', 'none', '-np', str(workers), sys.executable,
                    *map(str, command)], **AS_ROOT)


def run_checks(directory, checks, workers=2, start=horovodrun):
    """Make checks in one job, each a name, a function of horovod_workers.py and its arguments.

    Returns for each check the results, in the order of ranks.
    """
    (directory / 'checks').write_bytes(pickle.dumps(checks))
    with start([HERE / 'horovod_workers.py', directory], workers) as running:
        status = running.exit_status()
    assert status == 0 and 'Traceback' not in running.output, running.output
    of_ranks = [pickle.loads((directory / ('result-%d' % rank)).read_bytes())
                for rank in range(workers)]
    return {name: [results[name] for results in of_ranks] for name in of_ranks[0]}

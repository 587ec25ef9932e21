"""Roles of processes by their ranks, as mpirun gives them."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest

from cluster import ROOT, started
from jobs import TRAIN, assert_same_weights, weights
from mpi import ROLE

# Variables of {rank}, in jobs of three. The port follows from the job's name: other tests run at
# the same time.
OPEN_MPI = {'OMPI_COMM_WORLD_RANK': '{rank}', 'OMPI_COMM_WORLD_SIZE': '3',
            'OMPI_COMM_WORLD_LOCAL_SIZE': '3', 'PMIX_NAMESPACE': 'prterun-%d@1' % os.getpid()}
CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
TELL = '''
import json, os, sys
TOLD = True
sys.path.remove({root!r})
print(json.dumps([sys.argv, __name__, __file__, sys.path[0], sys.modules['__main__'].TOLD,
                  dict(os.environ)]), flush=True)
os._exit(0)
'''


@pytest.fixture
def tell(tmp_path):
    """A script that tells what it sees, beside an MXNet that serves in no time."""
    (tmp_path / 'mxnet.py').write_text('raise SystemExit')
    script = tmp_path / 'tell.py'
    script.write_text(TELL.format(root=str(ROOT)))
    return script


def run(variables, *command, ranks=range(3), **environment):
    """Run a job as mpirun starts it; return the exit status and the output of each rank."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(started(
            [sys.executable, *ROLE, *command], **environment,
            **{name: value.format(rank=rank) for name, value in variables.items()}))
            for rank in ranks]
        return [(job.exit_status(), job.output) for job in jobs]


@pytest.mark.process
@pytest.mark.parametrize('workers, given, threads', [
    (1, '5', '5'), (1, None, str(CORES)), (2, None, str(max(1, CORES // 2)))])
def test_a_role_follows_from_the_rank(tell, workers, given, threads):
    own = ['-n', '--', 'a b', '', 'é"\\', '-np', '1']
    sizes = dict.fromkeys(['OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE'], str(2 + workers))
    scheduler, server, (status, told), *_ = run(
        {**OPEN_MPI, **sizes}, tell, *own, ranks=range(2 + workers), PORT='1',
        OMP_NUM_THREADS=given, PYTHONPATH=os.pathsep.join([str(tell.parent), str(ROOT)]))
    assert scheduler == (0, 'All workers have finished.\n') and server == (0, '') and status == 0
    arguments, name, file, folder, is_main, environment = json.loads(told)
    assert arguments == [str(tell), *own] and name == '__main__' and is_main
    assert file == str(tell) and folder == str(tell.parent)
    assert environment.items() >= {
        'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_NUM_WORKER': str(workers),
        'DMLC_NUM_SERVER': '1', 'DMLC_NODE_HOST': '127.0.0.1', 'OMP_NUM_THREADS': threads}.items()
    assert environment['DMLC_PS_ROOT_PORT'].isdigit() and 'PORT' not in environment


@pytest.mark.process
@pytest.mark.parametrize('variables, options, says', [
    ({}, [], 'at least three processes, .* not 0 with -s 1'),
    (OPEN_MPI, ['-s', '2'], 'not 3 with -s 2'),
    ({**OPEN_MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}, [],
     "argument --root: must be the address of the host of rank 0, .* not '' with .*no address"),
    ({**OPEN_MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}, ['--root', '127.0.0.1'],
     "not '127.0.0.1' with .*no address at which the others find it"),
    (OPEN_MPI, ['--root', '192.0.2.1'], "not '192.0.2.1' with .*Cannot assign")])
def test_what_the_role_lacks_is_said(tell, variables, options, says):
    (status, said), = run(variables, *options, tell, ranks=[0])
    assert status == 2 and re.search('error: .*' + says, said), said


@pytest.mark.cluster
@pytest.mark.slow
def test_the_example_trains_as_alone(tmp_path):
    ended = run(OPEN_MPI, TRAIN, '--prefix', tmp_path / 'model', '--epochs', '3')
    assert [status for status, _ in ended] == [0] * 3, ended
    assert not any('Traceback' in said for _, said in ended), ended
    subprocess.run([sys.executable, str(TRAIN), '--prefix', str(tmp_path / 'alone'), '--epochs',
                    '3'], check=True, stderr=subprocess.DEVNULL)
    assert_same_weights(weights(tmp_path / 'model', 3), weights(tmp_path / 'alone', 3))

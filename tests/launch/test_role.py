"""Roles of processes by their ranks, as mpirun, Slurm and others give them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from cluster import HERE, ROOT, started
from jobs import TRAIN, assert_same_weights, weights
from mpi import AS_ROOT, MPIRUN, ROLE, SUCCESS, mpirun

needs_mpirun = pytest.mark.skipif(
    MPIRUN is None, reason="needs Open MPI's mpirun: `make mpirun` installs it")
WORKER = HERE / 'failing_worker.py'
# As variables of Open MPI, PMIx, Slurm and Kubernetes; of {rank}, in jobs of three. The port
# follows from the job's name, or is given: other tests run at the same time.
OPEN_MPI = {'OMPI_COMM_WORLD_RANK': '{rank}', 'OMPI_COMM_WORLD_SIZE': '3',
            'OMPI_COMM_WORLD_LOCAL_SIZE': '3', 'PMIX_RANK': '7',
            'PMIX_NAMESPACE': 'prterun-%d@1' % os.getpid()}
SLURM = {'SLURM_PROCID': '{rank}', 'SLURM_NTASKS': '3', 'SLURM_NNODES': '1',
         'SLURM_JOB_ID': str(os.getpid()), 'SLURM_STEP_NODELIST': 'no-such-host[01-04,7]'}
PMIX, KUBERNETES = {'PMIX_RANK': '{rank}'}, {'JOB_COMPLETION_INDEX': '{rank}'}
TELL = '''
import json, os, sys
sys.path.remove({root!r})
print(json.dumps([sys.argv, __name__, __file__, sys.path[0], sys.modules['__main__'].TELLS,
                  dict(os.environ)]))
'''.replace('print', 'TELLS = True\nprint')


class ByVariables:
    """A job whose processes have variables of their own, as srun starts them."""

    def __init__(self, variables, command, size=3, options=(), **environment):
        self._jobs = []
        if not {'PMIX_NAMESPACE', 'SLURM_JOB_ID'} & set(variables):
            with socket.create_server(('127.0.0.1', 0)) as listener:
                environment['DMLC_PS_ROOT_PORT'] = str(listener.getsockname()[1])
        for rank in range(size):
            own = {name: value.format(rank=rank) for name, value in variables.items()}
            rest = [option.format(rank=rank) for option in options]
            self._jobs.append(started([sys.executable, *ROLE, *rest, *map(str, command)],
                                      **{**environment, **own}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self._jobs:
            job.__exit__()

    def wait(self):
        """Return the exit status and the output of each rank."""
        return [(job.exit_status(), job.output) for job in self._jobs]


@pytest.fixture
def tell(tmp_path):
    """A script that tells what it sees, beside an MXNet that serves in no time."""
    (tmp_path / 'mxnet.py').write_text('')
    script = tmp_path / 'tell.py'
    script.write_text(TELL.format(root=str(ROOT)))
    return script


@pytest.mark.process
@pytest.mark.parametrize('variables, options', [
    (OPEN_MPI, []), (SLURM, []), (PMIX, ['--size', '3', '--root', 'localhost']),
    (KUBERNETES, ['--size', '3', '--root', '127.0.0.1']),
    ({}, ['--rank', '{rank}', '--size', '3', '--root', '127.0.0.1'])],
    ids=['open-mpi', 'slurm', 'pmix', 'kubernetes', 'options'])
def test_a_role_follows_from_the_rank(tell, variables, options):
    with ByVariables(variables, [tell, '--own', 'x'], options=options, PORT='1',
                     PYTHONPATH=os.pathsep.join([str(tell.parent), str(ROOT)])) as running:
        (scheduler, said), (server, silence), (worker, told) = running.wait()
    assert scheduler == server == worker == 0, said + silence + told
    assert said == SUCCESS % 3 + '\n' and silence == ''
    arguments, name, file, folder, is_main, environment = json.loads(told)
    assert arguments == [str(tell), '--own', 'x'] and name == '__main__' and is_main
    assert file == str(tell) and folder == str(tell.parent)
    assert environment.items() >= {
        'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_NUM_WORKER': '1',
        'DMLC_NUM_SERVER': '1', 'DMLC_INTERFACE': 'lo'}.items()
    assert environment['DMLC_PS_ROOT_PORT'].isdigit() and 'PORT' not in environment


@pytest.mark.process
@pytest.mark.parametrize('variables, options, says', [
    ({}, [], 'a rank below a size .* not rank None, size None and -s 1'),
    (PMIX, [], 'not rank 0, size None and -s 1'),
    (OPEN_MPI, ['-s', '2'], 'not rank 0, size 3 and -s 2'),
    (OPEN_MPI, ['--rank', '3'], 'not rank 3, size 3 and -s 1'),
    (OPEN_MPI, ['--link-timeout', '3'], 'argument --link-timeout: must be 6 or more, not 3'),
    ({**OPEN_MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}, [],
     "argument --root: must be the address of the host of rank 0, .* not '' with .*no address"),
    # The first host of Slurm, whose name leads to the loopback device.
    ({**SLURM, 'SLURM_NNODES': '3', 'SLURM_STEP_NODELIST': '127.0.0.[1-3],x'}, [],
     "not '127.0.0.1' with .*no address at which the others find it"),
    (OPEN_MPI, ['--root', '192.0.2.1'], "not '192.0.2.1' with .*Cannot assign")])
def test_what_the_role_lacks_is_said(tell, variables, options, says):
    with ByVariables(variables, [tell], size=1, options=options) as running:
        (status, said), = running.wait()
    assert status == 2 and re.search('error: .*' + says, said), said


@pytest.mark.process
def test_workers_of_a_host_share_its_cores(tell):
    cores = len(os.sched_getaffinity(0))
    for variables, expected in (({}, str(cores)), ({'SLURM_CPUS_PER_TASK': '7'}, '7')):
        environment = {name: value for name, value in os.environ.items()
                       if name != 'OMP_NUM_THREADS'}
        environment['PYTHONPATH'] = os.pathsep.join([str(tell.parent), str(ROOT)])
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(subprocess.Popen(
                [sys.executable, *ROLE, str(tell)], stdout=subprocess.PIPE, text=True,
                env={**environment, **variables, **{
                    name: value.format(rank=rank) for name, value in SLURM.items()}}))
                for rank in range(3)]
            told = [process.communicate(timeout=60)[0] for process in running]
        assert json.loads(told[2])[-1]['OMP_NUM_THREADS'] == expected


@pytest.mark.cluster
@pytest.mark.parametrize('script', ['raise SystemExit', *(
    pytest.param(script, marks=pytest.mark.slow) for script in ('', 'import mxnet'))])
def test_a_job_without_a_kvstore_ends(tmp_path, script):
    """As with --help: rank 0 and the servers wait for workers that never come."""
    path = tmp_path / 'script.py'
    path.write_text(script)
    with ByVariables({**SLURM, 'SLURM_NTASKS': '5'}, [path], 5, ['-s', '2']) as running:
        ended = running.wait()
    assert [status for status, _ in ended] == [0] * 5, ended
    assert ended[0][1].splitlines()[-2:] == [
        'All workers have ended, and none has made a KVStore: ending the servers', SUCCESS % 5]
    assert not any(said for _, said in ended[1:]), ended


def training(prefix):
    return [TRAIN, '--prefix', prefix, '--epochs', '3']


@pytest.mark.cluster
@pytest.mark.parametrize('way', [
    'slurm', pytest.param('mpirun', marks=[needs_mpirun, pytest.mark.slow])])
def test_the_example_trains_as_alone(tmp_path, way):
    if way == 'slurm':
        with ByVariables(SLURM, training(tmp_path / 'model')) as running:
            ended = running.wait()
        status, printed = max(status for status, _ in ended), ''.join(text for _, text in ended)
    else:
        with started(mpirun(3, training(tmp_path / 'model'), '--oversubscribe'),
                     **AS_ROOT) as running:
            status, printed = running.exit_status(), running.output
    assert status == 0 and 'Traceback' not in printed, printed
    assert SUCCESS % 3 in printed
    alone = [sys.executable, str(TRAIN), '--prefix', str(tmp_path / 'alone'), '--epochs', '3']
    subprocess.run(alone, check=True, stderr=subprocess.DEVNULL)
    assert_same_weights(weights(tmp_path / 'model', 3), weights(tmp_path / 'alone', 3))


def processes_of(log):
    """Return the processes of the job whose script has an argument, by their ranks."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            rank = process.environ().get('OMPI_COMM_WORLD_RANK')
            if rank is not None and str(log) in process.cmdline():
                found[int(rank)] = process
    return found


@pytest.mark.cluster
@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize('place, status', [
    ('in_callback', 1), ('exit_in_callback', 3), ('exit_with_message', 1), ('at_import', 1),
    ('terminate', 143)])
def test_a_worker_that_fails_ends_the_job_of_mpirun(tmp_path, place, status):
    log = tmp_path / 'log'
    with started(mpirun(4, [WORKER, place, log], '--oversubscribe'), **AS_ROOT) as running:
        assert running.exit_status() == status, running.output
        assert not processes_of(log)
    if place not in ('terminate', 'at_import'):
        assert log.read_text() == 'last words' and 'own exit handler' in running.output
    if place == 'exit_with_message':
        assert 'no such option' in running.output
    assert SUCCESS % 4 not in running.output


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.usefixtures('signals_are_heard')
@needs_mpirun
@pytest.mark.parametrize('victim, number, expected', [
    (0, signal.SIGKILL, 137), (1, signal.SIGKILL, 137), (3, signal.SIGKILL, 137),
    (None, signal.SIGINT, 1), (None, signal.SIGKILL, -9)])
def test_a_process_that_is_killed_ends_the_job_of_mpirun(tmp_path, victim, number, expected):
    command = [TRAIN, '--prefix', tmp_path / 'model', '--epochs', '100000']
    with started(mpirun(4, command, '--oversubscribe'), **AS_ROOT) as running:
        running.wait_for(r'Epoch\[2\]')
        pids = processes_of(tmp_path / 'model')
        if victim is None:
            running.send(number)
        else:
            pids[victim].send_signal(number)
        assert running.exit_status(30) == expected, running.output
        deadline = time.monotonic() + 10
        while any(process.is_running() and process.status() != 'zombie'
                  for process in pids.values()):
            assert time.monotonic() < deadline
            time.sleep(0.1)

"""What becomes of a distributed job when a process of it dies."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cluster import LAUNCHER, job
from jobs import TRAIN, assert_optimal, assert_same_weights, is_running, last_checkpoint, weights

DURING_PASS, DURING_TRAINING = r'Iter\[4\] Batch \[20\]', r'Epoch\[5\] Batch \[20-'
ROWS, FEATURES, CLASSES, L2 = 800, 6, 3, 0.01


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Write a LIBSVM file; return its name, the features and the labels."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(ROWS, FEATURES)).round(4)
    labels = (features @ rng.normal(size=(FEATURES, CLASSES))
              + rng.gumbel(size=(ROWS, CLASSES))).argmax(axis=1)
    path = tmp_path_factory.mktemp('data') / 'rows.libsvm'
    path.write_text(''.join('%d %s\n' % (label, ' '.join(
        '%d:%s' % (i + 1, value) for i, value in enumerate(row)))
        for label, row in zip(labels, features)))
    return path, features, labels


def training(data, prefix, kind='dist_sync', epochs=7, rate=0.02, momentum=0.0, resume=False,
             **environment):
    path, _, _ = data
    return job([sys.executable, str(TRAIN), '--data', str(path), '--prefix', str(prefix),
                '--kv-store', kind, '--epochs', str(epochs), '--batch-size', '5',
                '--learning-rate', str(rate), '--momentum', str(momentum), '--l2', str(L2),
                '--log-every', '20'] + ['--resume'] * resume, 2, 1, **environment)


def run_to_end(running):
    with running:
        status = running.exit_status()
    assert status == 0, running.output
    assert 'Traceback' not in running.output, running.output
    return running.output


def kill_and_resume(data, prefix, victim, moment, epochs=7, **given):
    """Kill a process of a job, check how the job ends, and resume it."""
    with training(data, prefix, epochs=epochs, **given) as running:
        running.wait_for(moment)
        pid = running.pids()[victim]
        os.kill(pid, signal.SIGKILL)
        tic = time.monotonic()
        assert running.exit_status(20) != 0
        assert time.monotonic() - tic < 10
        assert ('%s (process %d) was killed by SIGKILL: ending the others' % (victim, pid)
                in running.output)
        assert not any(is_running(pid) for pid in running.pids().values())
    last = last_checkpoint(prefix)
    assert 4 <= last < epochs
    output = run_to_end(training(data, prefix, epochs=epochs, resume=True, **given))
    assert 'from epoch %d on' % last in output, output


CASES = [(victim, moment) for victim in ('worker 0', 'worker 1', 'server 0', 'scheduler')
         for moment in (DURING_PASS, DURING_TRAINING)]


def usual(usual_cases):
    return [case if case in usual_cases else pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in CASES]


@pytest.fixture(scope='module')
def undisturbed(data, tmp_path_factory):
    """Return the last weights of a job that nothing happened to; run each such job once."""
    known = {}

    def run(momentum, **environment):
        if momentum not in known:
            prefix = tmp_path_factory.mktemp('undisturbed') / 'model'
            output = run_to_end(training(data, prefix, momentum=momentum, resume=True,
                                         **environment))
            assert 'from epoch 0 on' in output  # there was nothing to resume
            known[momentum] = weights(prefix, 7)
        return known[momentum]

    return run


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize('victim, moment', usual([('worker 1', DURING_TRAINING)]))
def test_a_resumed_job_ends_as_an_undisturbed_one(data, undisturbed, tmp_path, victim, moment):
    kill_and_resume(data, tmp_path / 'model', victim, moment)
    assert_same_weights(weights(tmp_path / 'model', 7), undisturbed(0.0))


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize('victim, moment', usual([('server 0', DURING_PASS)]))
def test_a_resumed_job_has_the_momentum_of_its_workers(data, undisturbed, tmp_path, victim, moment):
    environment = {'MXNET_UPDATE_ON_KVSTORE': '0'}
    kill_and_resume(data, tmp_path / 'model', victim, moment, momentum=0.8, **environment)
    assert_same_weights(weights(tmp_path / 'model', 7), undisturbed(0.8, **environment))


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize('victim, moment', usual([('scheduler', DURING_PASS)]))
def test_a_resumed_asynchronous_job_reaches_the_optimum(data, tmp_path, victim, moment):
    kill_and_resume(data, tmp_path / 'model', victim, moment, kind='dist_async', epochs=40,
                    rate=0.05)
    found = weights(tmp_path / 'model', 40)
    assert_optimal(found, *data[1:], L2)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('number, expected', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_launcher_that_is_ended_ends_all(data, tmp_path, number, expected):
    with training(data, tmp_path / 'model', epochs=1000) as running:
        running.wait_for('Epoch.0. Time cost')
        running.send(number)
        assert running.exit_status(15) == expected
        assert not any(is_running(pid) for pid in running.pids().values())


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='needs Linux')
def test_launcher_that_is_killed_takes_all_with_it(data, tmp_path):
    with training(data, tmp_path / 'model', epochs=1000) as running:
        running.wait_for('Epoch.0. Time cost')
        running.send(signal.SIGKILL)
        running.exit_status(15)
        wait_until_ended(running.pids().values())


@pytest.mark.cluster
def test_a_command_that_is_not_there_is_named():
    with job(['no-such-command']) as running:
        assert running.exit_status(15) == 127
    assert 'no-such-command: cannot be started' in running.output
    assert not any(is_running(pid) for pid in running.pids().values())


@pytest.mark.cluster
@pytest.mark.slow
def test_a_worker_may_go_on_without_its_kvstore(tmp_path):
    """The servers end when it is freed, which is no failure."""
    script = ('import mxnet as mx, time; kv = mx.kv.create("dist_sync"); kv._barrier(); del kv; '
              'time.sleep(7); print("still here")')
    with job([sys.executable, '-c', script]) as running:
        assert running.exit_status(60) == 0, running.output
    assert running.output.count('still here') == 2


@pytest.mark.cluster
def test_processes_that_a_worker_has_started_are_ended_too(tmp_path):
    script = 'trap "" TERM; sleep 1000 & echo child is $!; wait'
    with job(['sh', '-c', script], workers=1) as running:
        running.wait_for('child is')
        child = int(re.search(r'child is (\d+)', running.output).group(1))
        os.kill(running.pids()['worker 0'], signal.SIGKILL)
        assert running.exit_status(20) == 137
        assert not is_running(child)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='needs Linux')
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_process_that_has_left_its_session_is_ended_too(number):
    """Even if its parent has ended, and when the launcher is killed."""
    script = ('import subprocess, time; child = subprocess.Popen(["sleep", "1000"], '
              'start_new_session=True); print("child is", child.pid, flush=True)')
    command = ['sh', '-c', '"$0" -c "$1"; sleep 1000', sys.executable, script]
    with job(command, workers=1) as running:
        running.wait_for('child is')
        child = int(re.search(r'child is (\d+)', running.output).group(1))
        assert is_running(child)
        running.send(number)
        assert running.exit_status(20) == (143 if number == signal.SIGTERM else -number)
        wait_until_ended([child])


def wait_until_ended(pids, seconds=15):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if is_running(pid)]
        time.sleep(0.05)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_launcher_whose_output_nobody_reads_ends_the_job(tmp_path):
    script = 'import sys; [print("line", i, flush=True) for i in range(10**6)]'
    command = [sys.executable, str(LAUNCHER), '-n', '1', '--env', 'OMP_NUM_THREADS=1', '--',
               sys.executable, '-c', script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as running:
        pids = [int(running.stdout.readline().split()[-1]) for _ in range(3)]
        running.stdout.close()
        assert running.wait(30) != 0
    wait_until_ended(pids)


@pytest.mark.cluster
@pytest.mark.slow
def test_worker_with_an_error_ends_the_job(tmp_path):
    with job([sys.executable, str(TRAIN), '--data', str(tmp_path / 'missing')]) as running:
        assert running.exit_status(30) == 1
    assert 'FileNotFoundError' in running.output
    assert 'exited with status 1: ending the others' in running.output


@pytest.mark.process
@pytest.mark.parametrize('arguments', [
    ['-n', '0', 'true'], ['-s', 'x', 'true'], [], ['--link-timeout', '3', 'true'],
    ['--env', 'NO_SUCH_NAME', 'true'], ['--env', '=x', 'true'],
    ['--scheduler-host', '10.0.0.1', 'true']])
def test_wrong_arguments_of_the_launcher_are_refused(arguments):
    found = subprocess.run([sys.executable, str(LAUNCHER), *arguments], stderr=subprocess.PIPE,
                           text=True, timeout=30, check=False)
    assert found.returncode == 2 and 'usage' in found.stderr


@pytest.mark.process
def test_the_option_of_hosts_names_what_to_use_instead():
    found = subprocess.run([sys.executable, str(LAUNCHER), '--hosts', 'hosts.txt', 'true'],
                           stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert found.returncode == 2
    assert re.search(r'argument --hosts: .*launch\.role by mpirun', found.stderr)

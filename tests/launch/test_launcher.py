"""Jobs of mpirun and of horovodrun on this machine, and how they end."""

import atexit
import functools
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import mxnet as mx
import pytest

from cluster import assert_ended, horovodrun, is_running, job, needs_horovod, started
from jobs import EPOCHS, TRAIN, assert_resumes, run_to_end, training, weights
from problems import Problem


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


# Where the worker of rank 1 fails: this file is its script.

def announce():
    print('fails at', time.time(), flush=True)


def fail(*_):
    """Raise an error with a cause, over two lines."""
    announce()
    try:
        raise KeyError('the cause')
    except KeyError as error:
        raise ValueError('the reason\nand more') from error


def fit(data=None, **callbacks):
    problem = Problem()
    problem.module().fit(data or problem.iterator(), kvstore=kvstore, eval_metric='mse',
                         num_epoch=10 ** 6, **callbacks)


def in_callback():
    fit(batch_end_callback=fail)


def in_custom_loop():
    value = mx.nd.ones(3)
    kvstore.init('value', value)
    kvstore.push('value', value)  # which no other worker does
    fail()


def in_join_of_thread_that_waits():
    def wait_for_the_others():
        while True:  # the others come to some barriers, but not to all of these
            kvstore._barrier()

    thread = threading.Thread(target=wait_for_the_others)
    thread.start()
    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    thread.join()


def exit_in_callback():
    def leave(_):
        announce()
        sys.exit(3)

    fit(batch_end_callback=leave)


def exit_at_once():
    announce()
    os._exit(3)


def raise_keyboard_interrupt():
    announce()
    raise KeyboardInterrupt


@pytest.mark.cluster
@pytest.mark.parametrize('place, status', [
    ('in_callback', 1), slow('in_custom_loop', 1), slow('in_join_of_thread_that_waits', 1),
    slow('exit_in_callback', 3), slow('raise_keyboard_interrupt', 130), slow('exit_at_once', 3)])
def test_a_worker_that_fails_ends_the_job(tmp_path, place, status):
    log = tmp_path / 'log'
    with job(__file__, place, log) as running:
        running.wait_for('fails at')
        processes = running.processes().values()
        assert running.exit_status(20) == status, running.output
        assert_ended(processes)
    assert 'All workers have finished' not in running.output
    if place != 'exit_at_once':
        assert 'own exit handler' in running.output and log.read_text() == 'last words'
    assert (status == 1) == ('ValueError: the reason' in running.output)


PUSH = '''
import mxnet as mx, sys, time
kvstore = mx.kv.create('dist_async')
kvstore.set_optimizer(mx.optimizer.Test())
value = mx.nd.zeros((1000, 1000))
kvstore.init('value', value)
kvstore._barrier()
if kvstore.rank == 0:
    for _ in range(20):
        kvstore.push('value', mx.nd.ones((1000, 1000)))
    sys.exit()
for _ in range(100):
    kvstore.pull('value', out=value)
    if (value == 20).asnumpy().all():
        break
    time.sleep(0.1)
else:
    sys.exit('a push is lost')
del kvstore
time.sleep(3)
print('has gone on without its KVStore')
'''


@pytest.mark.cluster
@pytest.mark.slow
def test_what_a_worker_pushed_before_its_end_is_not_lost(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(PUSH)
    assert 'has gone on' in run_to_end(job(script))


def run_job(prefix, *options, epochs=EPOCHS, **environment):
    return job(*training(prefix, '--epochs', epochs, '--log-every', 20, *options), **environment)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize('rank, options, given', [
    (3, [], {}), (1, ['--momentum', 0.8], {'MXNET_UPDATE_ON_KVSTORE': '0'}),
    *(pytest.param(rank, [], {}, marks=pytest.mark.exhaustive) for rank in (0, 1, 2))])
def test_a_resumed_job_ends_as_an_undisturbed_one(tmp_path, rank, options, given):
    prefix, whole = tmp_path / 'model', tmp_path / 'whole'
    start = functools.partial(run_job, prefix, *options, **given)
    with start('--resume') as running:
        running.wait_for(r'Epoch\[3\] Batch \[20-')
        processes = running.processes()
        assert len(processes) == 4
        processes[rank].kill()
        assert running.exit_status(20) == 137, running.output
        assert_ended(processes.values())
    assert 'from epoch 0 on' in running.output  # there was nothing to resume
    run_to_end(run_job(whole, *options, **given))
    assert_resumes(start, prefix, weights(whole, EPOCHS))


@pytest.mark.cluster
@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('number, status, seconds', [
    (signal.SIGKILL, -9, 0), slow(signal.SIGKILL, -9, 0.1), slow(signal.SIGKILL, -9, 0.3),
    slow(signal.SIGKILL, -9, None), slow(signal.SIGTERM, 1, None), slow(signal.SIGINT, 1, None)])
def test_a_job_whose_launcher_gets_a_signal_ends(tmp_path, number, status, seconds):
    """In an epoch, or before its processes have asked the kernel to end with it."""
    with run_job(tmp_path / 'model', epochs=1000) as running:
        if seconds is None:
            running.wait_for('Epoch.0. Time cost')
        deadline = time.monotonic() + 30
        while len(running.processes()) < 4:
            assert time.monotonic() < deadline, running.output
        processes = running.processes().values()
        time.sleep(seconds or 0)
        running.send(number)
        assert running.exit_status(15) == status
        try:
            assert_ended(processes)
        finally:
            for process in filter(is_running, processes):
                process.kill()


@pytest.mark.cluster
@pytest.mark.slow
@needs_horovod
def test_the_example_ends_with_a_rank_of_horovod_that_is_killed_and_resumes(tmp_path):
    model, whole, epochs = tmp_path / 'model', tmp_path / 'whole', 8

    def start(*arguments, prefix=model):
        return horovodrun(TRAIN, '--kv-store', 'horovod', '--prefix', prefix, '--epochs', epochs,
                          '--batch-size', 10, '--momentum', 0.8, *arguments)

    run_to_end(start(prefix=whole))
    with start('--log-every', 1) as running:
        running.wait_for(r'Epoch\[3\] Batch \[1')
        workers = running.processes()
        assert sorted(workers) == [0, 1]
        workers[1].kill()
        assert running.exit_status(20) != 0
        assert_ended(workers.values(), 0)
    output = assert_resumes(start, model, weights(whole, epochs), epochs, 0)
    assert 'rank 1 of 2: 898 rows' in output, output


# MXNet's own launcher

def test_mxnets_launcher_has_the_name_that_python_removed():
    tracker = importlib.import_module('dmlc_tracker.tracker')
    thread = tracker.Thread(target=print)
    thread.setDaemon(True)
    assert not thread.isAlive() and thread.daemon


OF_MXNETS_LAUNCHER = '''
import mxnet as mx
from problems import Problem
problem, kvstore = Problem(), mx.kv.create('dist_sync')
problem.module().fit(problem.iterator(), kvstore=kvstore, eval_metric='mse', num_epoch=2)
kvstore._barrier()
print('rank %d has ended' % kvstore.rank, flush=True)
'''


@pytest.mark.slow
@pytest.mark.cluster
def test_a_job_of_mxnets_launcher_runs_to_its_end(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(OF_MXNETS_LAUNCHER)
    launcher = Path(mx.__file__).parent / 'tools' / 'launch.py'
    output = run_to_end(started([
        'timeout', '300', sys.executable, launcher, '-n', '2', '-s', '1', '--launcher', 'local',
        sys.executable, script], DMLC_INTERFACE='lo'))
    assert all('rank %d has ended' % rank in output for rank in (0, 1)), output


if __name__ == '__main__':  # a worker that trains with all others, until that of rank 1 fails
    failing, log_of_worker = sys.argv[1:]
    atexit.register(print, 'own exit handler', flush=True)
    kvstore = mx.kv.create('dist_sync')
    if kvstore.rank == 1:
        opened = open(log_of_worker, 'w', encoding='utf-8')  # noqa: SIM115
        opened.write('last words')
        globals()[failing]()
    else:
        fit()

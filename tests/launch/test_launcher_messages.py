"""What the launcher says, also when nobody reads it. No MXNet runs here."""

import array
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from cluster import ROOT

pytestmark = pytest.mark.process
LOCAL = ['-n', '1', '--']
ENDLESS = ['sh', '-c', 'while :; do echo a line; done']


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts the launcher, whose servers sleep."""
    package = tmp_path / 'mxnet'
    package.mkdir()
    (package / '__init__.py').write_text('import time; time.sleep(60)')
    (package / 'libinfo.py').write_text('__version__ = "1.9.1"\n')
    with contextlib.ExitStack() as stack:
        def start(*arguments, prefix=(), environment=None, threads='1', **given):
            path = os.pathsep.join([str(tmp_path), str(ROOT)])
            environment = {**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': threads,
                           **(environment or {})}
            if threads is None:
                del environment['OMP_NUM_THREADS']
            running = stack.enter_context(subprocess.Popen(
                [*prefix, sys.executable, '-m', 'svrg_optimization.launch', *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                text=True, env=environment, **given))
            stack.callback(running.kill)
            return running
        yield start


def is_running(pid):
    return os.path.exists('/proc/%d' % pid)


def wait_until_full(pipe):
    """Wait until a pipe of 64 KiB takes no more line."""
    unread = array.array('i', [0])
    while unread[0] < 60000:
        time.sleep(0.1)
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
    time.sleep(0.5)


def pids_of(running):
    """Read the lines that name the scheduler, the server and the worker."""
    return [int(running.stdout.readline().split()[-1]) for _ in range(3)]


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('number', [signal.SIGTERM] + [
    pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP)])
def test_a_signal_ends_a_job_whose_output_nobody_reads(launch, number):
    running = launch(*LOCAL, *ENDLESS)
    pids = pids_of(running)
    wait_until_full(running.stdout)
    running.send_signal(number)
    tic = time.monotonic()
    assert running.wait(30) == 128 + number
    assert time.monotonic() - tic < 10
    assert not any(map(is_running, pids))


def test_a_job_ends_within_seconds_when_its_reader_is_gone(launch):
    running = launch(*LOCAL, *ENDLESS)
    pids = pids_of(running)
    running.stdout.close()
    tic = time.monotonic()
    assert running.wait(30) == 128 + signal.SIGPIPE
    while any(map(is_running, pids)) and time.monotonic() - tic < 10:
        time.sleep(0.05)  # the kernel may not have ended all of them yet
    assert time.monotonic() - tic < 10


@pytest.mark.usefixtures('signals_are_heard')
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_job_is_named(launch, number):
    running = launch(*LOCAL, 'sleep', '60')
    pids_of(running)
    running.send_signal(number)
    assert running.stdout.read() == '[launcher] received %s: ending all\n' % number.name
    assert running.wait(30) == 128 + number


def test_a_job_below_nohup_outlives_its_terminal(launch):
    running = launch(*LOCAL, 'sh', '-c', 'sleep 1; exit 7', prefix=['nohup'])
    assert running.stdout.readline().startswith(('nohup:', '[launcher]'))
    running.send_signal(signal.SIGHUP)
    assert 'exited with status 7' in running.stdout.read()
    assert running.wait(30) == 7


@pytest.mark.parametrize('script, says', [
    ("raise ValueError('one\\ntwo')", 'exited with status 1: ending the others. Its error: '
                                      'ValueError: one'),
    ("import argparse; argparse.ArgumentParser(prog='x').error('no such option')",
     'exited with status 2: ending the others. Its last line: x: error: no such option'),
    ("import os; os._exit(4)", 'exited with status 4: ending the others'),
    # As an error of MXNet, which holds a traceback of its C++ code.
    ("raise ValueError('Traceback (most recent call last):\\n  File x\\nMXNetError: failed')",
     'exited with status 1: ending the others. Its error: MXNetError: failed')])
def test_the_last_line_of_an_error_is_repeated(launch, script, says):
    running = launch(*LOCAL, sys.executable, '-c', script)
    lines = running.stdout.read().splitlines()
    assert re.fullmatch(r'\[launcher\] worker 0 \(process \d+\) ' + re.escape(says), lines[-1])


@pytest.mark.slow
def test_a_worker_that_ends_while_others_run_is_named(launch, tmp_path):
    running = launch('-n', '2', '--', 'sh', '-c', 'mkdir %s || sleep 60' % (tmp_path / 'first'))
    named = re.compile(r'\[launcher\] worker (\d) ended with status 0 over 5 seconds ago: whoever '
                       r'needs them waits for ever \(worker (\d)\)\n')
    found = next(filter(None, map(named.fullmatch, iter(running.stdout.readline, ''))))
    assert sorted(found.groups()) == ['0', '1']
    assert running.poll() is None


@pytest.mark.parametrize('option, folder', [
    ([], Path(sys.executable).parent), (['--python', '/own/bin/python'], '/own/bin')])
def test_python_of_the_servers_is_first_in_the_path(launch, option, folder):
    """That of the launcher, without an option; one that is not there cannot serve."""
    running = launch(*option, *LOCAL, 'sh', '-c', 'echo $PATH', environment={'PATH': os.defpath})
    expected = ('[worker 0] %s:' % folder if not option else
                'this machine: /own/bin/python -c import mxnet: cannot be started: ')
    assert expected in running.stdout.read()


THREADS = ['sh', '-c', 'echo has $OMP_NUM_THREADS']
CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


@pytest.mark.parametrize('workers', [1, CORES + 1])
def test_workers_share_the_cores(launch, workers):
    running = launch('-n', str(workers), '--', *THREADS, threads=None)
    printed = running.stdout.read()
    share = max(1, CORES // workers)
    told = re.findall(r'^\[worker .*\] has (\d+)$', printed, re.MULTILINE)
    assert told == [str(share)] * workers
    assert re.findall(r'^\[launcher\] (.*OMP_.*)$', printed, re.MULTILINE) == [
        'this machine: each worker has OMP_NUM_THREADS=%d (cores: %d, workers: %d); --env '
        'OMP_NUM_THREADS=N sets another number' % (share, CORES, workers)]


@pytest.mark.parametrize('threads, options', [('7', []), (None, ['--env', 'OMP_NUM_THREADS=7'])])
def test_workers_have_the_threads_that_somebody_chose(launch, threads, options):
    printed = launch(*options, *LOCAL, *THREADS, threads=threads).stdout.read()
    assert '[worker 0] has 7\n' in printed and 'each worker' not in printed


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='needs Linux')
def test_cores_that_a_job_may_not_use_do_not_count(launch):
    core = str(min(os.sched_getaffinity(0)))
    running = launch(*LOCAL, *THREADS, threads=None, prefix=['taskset', '-c', core])
    assert '[worker 0] has 1\n' in running.stdout.read()

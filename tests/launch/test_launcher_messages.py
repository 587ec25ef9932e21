"""What the launcher says, also when nobody reads it. No MXNet runs here, and no ssh."""

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
from svrg_optimization.launch.hosts import read_hosts

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


@pytest.fixture
def on_host(tmp_path, launch):
    """Return a function that starts a job on a host, which a script takes the place of."""
    (tmp_path / 'hosts.txt').write_text('h1\n')
    ssh = tmp_path / 'ssh'

    def start(*arguments, first=':', **given):
        ssh.write_text('#!/bin/sh\n%s\nfor last; do :; done\nexec sh -c "$last"\n' % first)
        ssh.chmod(0o755)
        return launch('--hosts', str(tmp_path / 'hosts.txt'), '--ssh', str(ssh),
                      '--scheduler-host', '127.0.0.1', '-n', '1', *arguments, **given)
    return start


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
    assert time.monotonic() - tic < 10
    assert not any(map(is_running, pids))


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_job_is_named(launch, number):
    # Below nohup the tests, and what they start, ignore SIGHUP.
    running = launch(*LOCAL, 'sleep', '60',
                     preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
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


def test_packages_whose_version_cannot_be_found_are_one_line(launch, tmp_path):
    (tmp_path / 'mxnet' / 'libinfo.py').unlink()
    running = launch(*LOCAL, 'true')
    assert re.fullmatch(r'\[launcher\] this machine: the versions of svrg_optimization and mxnet '
                        r'cannot be found: FileNotFoundError: .*libinfo\.py.*\n',
                        running.stdout.read())
    assert running.wait(30) == 1


def test_a_python_that_a_host_lacks_is_named_with_the_option(on_host):
    running = on_host('--python', '/no/such/python', 'true')
    assert re.search(r'^\[launcher\] h1: cannot run the Python /no/such/python; --python names '
                     'another one: .*not found', running.stdout.read(), re.MULTILINE)
    assert running.wait(30) == 1


@pytest.mark.slow
def test_a_host_that_is_waited_for_is_named(on_host):
    running = on_host('true', first='sleep 7')
    assert running.stdout.readline() == '[launcher] waiting for h1\n'


@pytest.mark.slow
def test_an_agent_that_stands_still_does_not_respond(on_host):
    running = on_host('--link-timeout', '4', 'sleep', '60')
    lines = iter(running.stdout.readline, '')
    worker = next(int(line.split()[-1]) for line in lines if 'worker 0 on h1 is process' in line)
    agent = int(Path('/proc/%d/stat' % worker).read_text().rpartition(')')[2].split()[1])
    os.kill(agent, signal.SIGSTOP)
    # The scheduler may be announced after the worker.
    assert [line for line in lines if ' is process ' not in line] == [
        '[launcher] h1: does not respond: nothing has come from it for 4 seconds: ending the '
        'others\n', '[launcher] h1: does not respond; if its agent runs, it ends all processes '
                    'there within 14 seconds\n']


def test_a_host_has_the_umask_of_the_launcher(on_host):
    running = on_host('--', 'sh', '-c', 'umask', first='umask 077',
                      prefix=['sh', '-c', 'umask 027; exec "$0" "$@"'])
    assert '[worker 0 on h1] 0027\n' in running.stdout.read()


@pytest.mark.parametrize('where', ['launch', 'on_host'])
def test_python_is_that_of_the_launcher_everywhere(where, request):
    arguments = LOCAL if where == 'launch' else ['--']
    running = request.getfixturevalue(where)(
        *arguments, 'sh', '-c', 'command -v python', environment={'PATH': os.defpath})
    assert re.search(r'^\[worker 0.*\] %s$' % Path(sys.executable).with_name('python'),
                     running.stdout.read(), re.MULTILINE)


THREADS = ['sh', '-c', 'echo has $OMP_NUM_THREADS']
CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


@pytest.mark.parametrize('where, name, workers', [
    ('launch', 'this machine', 1), ('launch', 'this machine', CORES + 1), ('on_host', 'h1', 1)])
def test_workers_share_the_cores_of_their_host(where, name, workers, request):
    running = request.getfixturevalue(where)('-n', str(workers), '--', *THREADS, threads=None)
    printed = running.stdout.read()
    share = max(1, CORES // workers)
    told = re.findall(r'^\[worker .*\] has (\d+)$', printed, re.MULTILINE)
    assert told == [str(share)] * workers
    assert re.findall(r'^\[launcher\] (.*OMP_.*)$', printed, re.MULTILINE) == [
        '%s: each worker has OMP_NUM_THREADS=%d (cores: %d, workers: %d); --env OMP_NUM_THREADS=N '
        'sets another number' % (name, share, CORES, workers)]


@pytest.mark.parametrize('threads, options', [('7', []), (None, ['--env', 'OMP_NUM_THREADS=7'])])
def test_workers_have_the_threads_that_somebody_chose(launch, threads, options):
    printed = launch(*options, *LOCAL, *THREADS, threads=threads).stdout.read()
    assert '[worker 0] has 7\n' in printed and 'each worker' not in printed


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='needs Linux')
def test_cores_that_a_job_may_not_use_do_not_count(launch):
    core = str(min(os.sched_getaffinity(0)))
    running = launch(*LOCAL, *THREADS, threads=None, prefix=['taskset', '-c', core])
    assert '[worker 0] has 1\n' in running.stdout.read()


def test_a_file_of_hosts_may_come_from_windows(tmp_path):
    file = tmp_path / 'hosts.txt'
    file.write_bytes(b'\xef\xbb\xbfh1\r\nh2 slots=2\r\n')
    assert read_hosts(file) == {'h1': None, 'h2': 2}

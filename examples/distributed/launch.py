"""Run a distributed training on this machine: a scheduler, servers and workers.

    python launch.py --workers 2 --servers 1 -- python train.py --kv-store dist_sync

Starts the command once for each worker. What a process prints appears with its
role in front. If any process dies, the others are ended and the exit status is
not 0; if all workers succeed, it is 0. Workers are numbered as they are
started; the rank that a worker reads from its KVStore may be another number.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time

# A process that only imports mxnet serves in the role that its environment names.
SERVE = [sys.executable, '-c', 'import mxnet']
SECONDS_TO_END_ITSELF = 20
SECONDS_TO_TERMINATE = 5
PR_SET_PDEATHSIG = 1


def free_port():
    """Return a port of the loopback device that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def die_with_parent():
    """Let the kernel end this process when its parent dies, where it can (Linux)."""
    if sys.platform.startswith('linux'):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A process of the cluster, whose output is passed through with its role in front."""

    def __init__(self, name, command, environment):
        self.name = name
        self._popen = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True, errors='replace',
                                       start_new_session=True,
                                       preexec_fn=die_with_parent)  # noqa: PLW1509
        self._reader = threading.Thread(target=self._pass_output_through, daemon=True)
        say('%s is process %d' % (name, self._popen.pid))

    def pass_output_through(self):
        """Begin to print its output; not before all processes are there, which fork."""
        self._reader.start()

    def _pass_output_through(self):
        try:
            for line in self._popen.stdout:
                say(line.rstrip('\n'), self.name)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)  # nobody reads our output any more

    def is_running(self):
        return self._popen.poll() is None

    def has_failed(self):
        return not self.is_running() and self._popen.returncode != 0

    @property
    def exit_status(self):
        """The exit status, as a shell gives it."""
        code = self._popen.returncode
        return code if code >= 0 else 128 - code

    def describe_end(self):
        code = self._popen.returncode
        how = 'exited with status %d' % code if code >= 0 else (
            'was killed by %s' % signal.Signals(-code).name)
        return '%s (process %d) %s' % (self.name, self._popen.pid, how)

    def send(self, number):
        """Send a signal to the process and those that it has started."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._popen.pid, number)

    def wait_for_output(self):
        self._reader.join(timeout=1)


def say(message, name='launcher'):
    sys.stdout.write('[%s] %s\n' % (name, message))  # in one piece, since several threads write
    sys.stdout.flush()


def start(workers, servers, command):
    """Start all processes of a cluster; return those that serve and those that work."""
    environment = dict(os.environ, DMLC_PS_ROOT_URI='127.0.0.1', DMLC_INTERFACE='lo',
                       DMLC_PS_ROOT_PORT=str(free_port()), DMLC_NUM_WORKER=str(workers),
                       DMLC_NUM_SERVER=str(servers), PYTHONUNBUFFERED='1')
    environment.pop('PORT', None)  # ps-lite would bind it in every process
    serving, working = [], []
    try:
        for role, count in (('scheduler', 1), ('server', servers)):
            for number in range(count):
                name = role if role == 'scheduler' else '%s %d' % (role, number)
                serving.append(Process(name, SERVE, dict(environment, DMLC_ROLE=role)))
        for number in range(workers):
            working.append(Process('worker %d' % number, command,
                                   dict(environment, DMLC_ROLE='worker')))
    except BaseException:
        end(serving + working)
        raise
    for process in serving + working:
        process.pass_output_through()
    return serving, working


def first_failure(serving, working):
    """Wait for the end of the job; return a process that died, None if there was none.

    Servers end with status 0 when the workers disconnect, which need not be their end.
    """
    while any(process.is_running() for process in working):
        for process in serving + working:
            if process.has_failed():
                return process
        time.sleep(0.05)
    return next((process for process in working if process.has_failed()), None)


def wait_until_ended(processes, seconds):
    deadline = time.monotonic() + seconds
    while any(process.is_running() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)


def end(processes):
    """End all processes and those that they have started, by force where they do not follow."""
    for process in processes:
        process.send(signal.SIGTERM)
    wait_until_ended(processes, SECONDS_TO_TERMINATE)
    for process in processes:
        process.send(signal.SIGKILL)
    wait_until_ended(processes, SECONDS_TO_TERMINATE)


def run(workers, servers, command):
    """Run a job; return the exit status."""
    try:
        serving, working = start(workers, servers, command)
    except OSError as error:
        say('%s: cannot be started: %s' % (' '.join(command), error))
        return 127
    everyone = serving + working
    try:
        failed = first_failure(serving, working)
        if failed:
            say('%s: ending the others' % failed.describe_end())
            return failed.exit_status or 1
        wait_until_ended(serving, SECONDS_TO_END_ITSELF)
        return 0
    finally:
        end(everyone)
        for process in everyone:
            process.wait_for_output()


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError('must be 1 or more, not %s' % text)
    return number


def stop(number, _):
    with contextlib.suppress(OSError):  # nobody may read it any more
        say('received %s: ending all' % signal.Signals(number).name)
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-n', '--workers', type=positive, default=2)
    parser.add_argument('-s', '--servers', type=positive, default=1)
    parser.add_argument('command', nargs='+', help='what each worker runs')
    args = parser.parse_args()
    sys.stdout.reconfigure(errors='backslashreplace')
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    sys.exit(run(args.workers, args.servers, args.command))


if __name__ == '__main__':
    main()

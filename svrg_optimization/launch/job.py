"""One job on this machine: its processes, their output, and their end."""

import contextlib
import ctypes
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SECONDS_TO_TERMINATE = SECONDS_TO_KILL = SECONDS_UNTIL_A_WAIT_IS_SAID = 5
SECONDS_PER_TURN, SECONDS_TO_PRINT_THE_REST, MOST_UNPRINTED_LINES = 0.05, 1, 1000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PORTS = range(10000, 30000, 2)  # below those that Linux gives to connections


def prctl(option, value):
    """Call prctl, where there is one (Linux)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def number_of_cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


def free_port():
    """Return a port of this machine that is free, and that no process gets which asks for any."""
    while True:
        port = random.choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(('127.0.0.1', port)):
            return port


def processes_below():
    """Return the numbers of all processes that this one has started, directly or not (Linux)."""
    children = {}
    for path in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = path.read_text(errors='replace').rpartition(')')[2].split()[:2]
            if state != 'Z':
                children.setdefault(int(parent), []).append(int(path.parent.name))
    below = [os.getpid()]
    for parent in below:  # which grows
        below += children.get(parent, [])
    return below[1:]


def signal_all(number, pids):
    """Send a signal to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Process:
    """A process of the job, whose lines a thread passes on."""

    def __init__(self, name, command, environment, pass_on):
        self.name, self._last_line, self._error, self._pass_on = name, '', None, pass_on
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, encoding='utf-8', errors='replace')
        self.reader = threading.Thread(target=self._read, daemon=True)

    def _read(self):
        is_in_traceback = False
        for line in self.popen.stdout:
            self._last_line = line.rstrip('\n')
            if line.endswith('Traceback (most recent call last):\n'):  # also below one of MXNet
                is_in_traceback = True
            elif is_in_traceback and self._last_line and line[0] != ' ':
                is_in_traceback, self._error = False, self._last_line
            self._pass_on(self._last_line, self.name)

    def failure(self):
        """Return how the process has failed, what it said of the reason, and the exit status."""
        self.reader.join(1)  # if somebody reads its lines
        status, why = self.popen.returncode, ''
        if status > 0 and (self._error or self._last_line):
            why = '. Its %s' % ('error: ' + self._error if self._error else
                                'last line: ' + self._last_line)
        # Real-time signals have no names.
        how = 'exited with status %d' % status if status > 0 else 'was killed by %s' % next(
            (known.name for known in signal.Signals if known == -status), 'signal %d' % -status)
        return ('%s (process %d) %s: ending the others%s' % (self.name, self.popen.pid, how, why),
                status if status > 0 else 128 - status)


class Job:
    """A scheduler, servers and workers, which the arguments of the launcher describe."""

    def __init__(self, args):
        self._args, self._processes, self._lines = args, [], queue.Queue()

    def run(self):
        """Run the job to its end; return the exit status."""
        threading.Thread(target=self._print, daemon=True).start()
        deadline = None
        try:
            status = self._start() or self._wait_for_workers()
        except SystemExit as stopped:
            self._say('received %s: ending all' % signal.Signals(stopped.code - 128).name)
            status, deadline = stopped.code, time.monotonic() + SECONDS_TO_PRINT_THE_REST
        for number, seconds in ((signal.SIGTERM, SECONDS_TO_TERMINATE),
                                (signal.SIGKILL, SECONDS_TO_KILL)):
            signal_all(number, self._left())
            end = time.monotonic() + seconds
            while self._left() and time.monotonic() < end:
                time.sleep(SECONDS_PER_TURN)
        readers = [process.reader for process in self._processes]
        while any(reader.is_alive() for reader in readers) or self._lines.unfinished_tasks:
            if deadline and time.monotonic() > deadline:
                break
            time.sleep(SECONDS_PER_TURN)
        return status

    def _say(self, message, name='launcher'):
        self._lines.put('[%s] %s\n' % (name, message))

    def _pass_on(self, line, name):
        while self._lines.qsize() > MOST_UNPRINTED_LINES:
            time.sleep(SECONDS_PER_TURN)
        self._say(line, name)

    def _print(self):
        """Print, in a thread, so that the job ends even if nobody reads."""
        while True:
            left = self._lines.get().encode(sys.stdout.encoding, 'backslashreplace')
            try:
                while left:
                    left = left[os.write(1, left):]
            except OSError:  # once: then all goes nowhere
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.kill(os.getpid(), signal.SIGPIPE)
            self._lines.task_done()

    def _left(self):
        return processes_below() or [process.popen.pid for process in self._processes
                                     if process.popen.poll() is None]

    def _start(self):
        """Start all; return the exit status, 0 if they run."""
        workers, servers, python = self._args.workers, self._args.servers, self._args.python
        port = free_port()
        path = os.path.dirname(python) + os.pathsep + os.environ.get('PATH', os.defpath)
        common = {'PYTHONUNBUFFERED': '1', **os.environ, 'PATH': path,
                  **dict(given.split('=', 1) for given in self._args.env),
                  'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_PS_ROOT_PORT': str(port),
                  'DMLC_NUM_WORKER': str(workers), 'DMLC_NUM_SERVER': str(servers),
                  'DMLC_INTERFACE': 'lo', 'SVRG_OPTIMIZATION_LAUNCHER': '1'}
        common.pop('PORT', None)  # ps-lite would bind it in every process
        threads = str(max(1, number_of_cores() // workers))
        if 'OMP_NUM_THREADS' not in common:
            self._say('this machine: each worker has OMP_NUM_THREADS=%s (cores: %d, workers: %d); '
                      '--env OMP_NUM_THREADS=N sets another number'
                      % (threads, number_of_cores(), workers))
        for name in ['scheduler', *('server %d' % i for i in range(servers)),
                     *('worker %d' % i for i in range(workers))]:
            command, environment = [python, '-c', 'import mxnet'], {**common}
            if name.startswith('worker'):
                command, environment = self._args.command, {'OMP_NUM_THREADS': threads, **common}
            environment['DMLC_ROLE'] = name.split()[0]
            try:
                self._processes.append(Process(name, command, environment, self._pass_on))
            except OSError as error:
                self._say('this machine: %s: cannot be started: %s: ending the others'
                          % (' '.join(command), error))
                return 127
            self._say('%s is process %d' % (name, self._processes[-1].popen.pid))
            self._processes[-1].reader.start()
        return 0

    def _wait_for_workers(self):
        """Wait until all workers have ended, or a process has failed; return the exit status."""
        workers, first_end = self._processes[1 + self._args.servers:], None
        while True:
            # A server that ends with status 0 follows the workers, and need not be their end.
            for process in self._processes:
                if process.popen.poll():
                    message, status = process.failure()
                    self._say(message)
                    return status
            running = [worker.name for worker in workers if worker.popen.returncode is None]
            ended = [worker.name for worker in workers if worker.name not in running]
            if not running:
                return 0
            if ended and first_end is None:
                first_end = time.monotonic()
            if ended and 0 < first_end < time.monotonic() - SECONDS_UNTIL_A_WAIT_IS_SAID:
                first_end = 0
                self._say('%s ended with status 0 over %d seconds ago: whoever needs them waits '
                          'for ever (%s)' % (', '.join(ended), SECONDS_UNTIL_A_WAIT_IS_SAID,
                                             ', '.join(running)))
            time.sleep(SECONDS_PER_TURN)

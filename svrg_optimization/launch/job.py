"""One job on this machine: its processes, their output, and their end."""

import codecs
import contextlib
import ctypes
import io
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SECONDS_TO_TERMINATE = SECONDS_TO_KILL = SECONDS_UNTIL_A_WAIT_IS_SAID = 5
SECONDS_PER_TURN, SECONDS_TO_PRINT_THE_REST = 0.05, 1
MOST_UNPRINTED_BYTES = 1 << 16  # what a pipe holds
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option, value):
    """Call prctl, where there is one (Linux)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def number_of_cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


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
    """A process of the job, and its output as far as it has come."""

    def __init__(self, name, command, environment):
        self.name, self._begun, self._last_line, self._error = name, '', '', None
        self._is_in_traceback = False
        decoder = codecs.getincrementaldecoder('utf-8')('replace')
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        self.output = self.popen.stdout
        os.set_blocking(self.output.fileno(), False)

    def read_lines(self):
        """Return the lines that have come since the last call; close the output at its end."""
        try:
            read = None if self.output.closed else os.read(self.output.fileno(), 1 << 16)
        except BlockingIOError:
            read = None
        if read is None:
            return []
        *lines, self._begun = (self._begun + self._decoder.decode(read, not read)).split('\n')
        if not read:
            self.output.close()
            lines += [self._begun] * bool(self._begun)
        for line in lines:
            self._last_line = line
            if line.endswith('Traceback (most recent call last):'):  # also below one of MXNet
                self._is_in_traceback = True
            elif self._is_in_traceback and line and line[0] != ' ':
                self._is_in_traceback, self._error = False, line
        return lines

    def failure(self):
        """Return how the process has failed, and what it said of the reason."""
        status, why = self.popen.returncode, ''
        how = ('was killed by %s' % signal.Signals(-status).name if status < 0 else
               'exited with status %d' % status)
        if status > 0 and (self._error or self._last_line):
            why = ('. Its error: %s' % self._error if self._error else
                   '. Its last line: %s' % self._last_line)
        return '%s (process %d) %s: ending the others%s' % (self.name, self.popen.pid, how, why)


class Job:
    """A scheduler, servers and workers, which the arguments of the launcher describe."""

    def __init__(self, args):
        self._args, self._processes, self._unprinted = args, [], bytearray()

    def run(self):
        """Run the job to its end; return the exit status."""
        seconds_to_print = math.inf
        try:
            status = self._start() or self._wait_for_workers()
        except SystemExit as stopped:
            self._say('received %s: ending all' % signal.Signals(stopped.code - 128).name)
            status, seconds_to_print = stopped.code, SECONDS_TO_PRINT_THE_REST
        signal_all(signal.SIGTERM, self._left())
        self._take_turns(SECONDS_TO_TERMINATE, self._left)
        signal_all(signal.SIGKILL, self._left())
        self._take_turns(SECONDS_TO_KILL, self._left)
        self._take_turns(seconds_to_print, lambda: self._unprinted)
        return status

    def _say(self, message, name='launcher'):
        text = '[%s] %s\n' % (name, message)
        self._unprinted += text.encode(sys.stdout.encoding, 'backslashreplace')

    def _left(self):
        return processes_below() or [process.popen.pid for process in self._processes
                                     if process.popen.poll() is None]

    def _start(self):
        """Start all; return the exit status, 0 if they run."""
        workers, servers, python = self._args.workers, self._args.servers, self._args.python
        with socket.create_server(('127.0.0.1', 0)) as listener:
            port = listener.getsockname()[1]
        path = [os.path.dirname(python), os.environ.get('PATH', os.defpath)]
        common = {'PYTHONUNBUFFERED': '1', **os.environ, 'PATH': os.pathsep.join(path),
                  **dict(given.split('=', 1) for given in self._args.env if '=' in given),
                  'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_PS_ROOT_PORT': str(port),
                  'DMLC_NUM_WORKER': str(workers), 'DMLC_NUM_SERVER': str(servers),
                  'DMLC_INTERFACE': 'lo', 'SVRG_OPTIMIZATION_LAUNCHER': '1'}
        common.pop('PORT', None)  # ps-lite would bind it in every process
        threads = str(max(1, number_of_cores() // workers))
        of_worker = {'OMP_NUM_THREADS': threads, **common}
        if 'OMP_NUM_THREADS' not in common:
            self._say('this machine: each worker has OMP_NUM_THREADS=%s (cores: %d, workers: %d); '
                      '--env OMP_NUM_THREADS=N sets another number'
                      % (threads, number_of_cores(), workers))
        for i in range(-1 - servers, workers):
            role = 'worker' if i >= 0 else 'server' if i >= -servers else 'scheduler'
            name = role if role == 'scheduler' else '%s %d' % (role, i % (servers if i < 0 else workers))
            command = self._args.command if i >= 0 else [python, '-c', 'import mxnet']
            try:
                self._processes.append(Process(name, command, dict(
                    of_worker if i >= 0 else common, DMLC_ROLE=role)))
            except OSError as error:
                self._say('this machine: %s: cannot be started: %s: ending the others'
                          % (' '.join(command), error))
                return 127
            self._say('%s is process %d' % (name, self._processes[-1].popen.pid))
        return 0

    def _wait_for_workers(self):
        """Wait until all workers have ended, or a process has failed; return the exit status."""
        workers, first_end = self._processes[1 + self._args.servers:], None
        while any(worker.popen.returncode is None for worker in workers):
            self._take_turn()
            # A server that ends with status 0 follows the workers, and need not be their end.
            for process in self._processes:
                if process.popen.returncode:
                    self._say(process.failure())
                    status = process.popen.returncode
                    return status if status > 0 else 128 - status
            ended, running = ([worker.name for worker in workers
                               if (worker.popen.returncode is None) == runs]
                              for runs in (False, True))
            if first_end is None and ended:
                first_end = time.monotonic()
            if ended and running and time.monotonic() - first_end > SECONDS_UNTIL_A_WAIT_IS_SAID:
                first_end = math.inf
                self._say('%s ended with status 0 over %d seconds ago: whoever needs them waits '
                          'for ever (%s)' % (', '.join(ended), SECONDS_UNTIL_A_WAIT_IS_SAID,
                                             ', '.join(running)))
        return 0

    def _take_turns(self, seconds, is_needed):
        deadline = time.monotonic() + seconds
        while is_needed() and time.monotonic() < deadline:
            self._take_turn()

    def _take_turn(self):
        """Read and print what there is, and see who has ended."""
        has_room = len(self._unprinted) < MOST_UNPRINTED_BYTES
        reading = [process.output for process in self._processes
                   if has_room and not process.output.closed]
        readable, writable, _ = select.select(reading, [1] if self._unprinted else [], [],
                                              SECONDS_PER_TURN)
        for process in self._processes:
            has_ended = process.popen.poll() is not None
            for _ in range(2 if has_ended else process.output in readable):  # the rest, its end
                for line in process.read_lines():
                    self._say(line, process.name)
        if writable:
            try:  # no more than what does not block
                del self._unprinted[:os.write(1, self._unprinted[:select.PIPE_BUF])]
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.exit(128 + signal.SIGPIPE)

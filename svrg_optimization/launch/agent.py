"""Agent of the launcher, which starts processes of a job on one host and ends them.

Its source travels to each host, so this file stands alone. Orders come on
standard input and reports leave on standard output, one line of JSON each. The
agent ends all processes below it when its input closes, or when nothing comes
for longer than a timeout.
"""

import codecs
import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SECONDS_BETWEEN_BEATS = 1
SECONDS_TO_BE_PREPARED = 60
SECONDS_TO_TERMINATE = 5
SECONDS_TO_KILL = 5
SECONDS_PER_TURN = 0.05
MOST_UNSENT_BYTES = 1 << 20
LONGEST_LINE = 1 << 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# It does not import MXNet, which would begin to serve or take seconds.
VERSIONS = """
import importlib.machinery, json, pathlib, platform, re
found = {'svrg_optimization': None, 'mxnet': None, 'python': platform.python_version()}
try:
    import svrg_optimization
    found['svrg_optimization'] = svrg_optimization.__version__
except ImportError:
    pass
spec = importlib.machinery.PathFinder.find_spec('mxnet')
if spec and spec.origin:
    text = pathlib.Path(spec.origin).with_name('libinfo.py').read_text()
    found['mxnet'] = re.search(r'^__version__ = .(.+).$', text, re.MULTILINE).group(1)
print(json.dumps(found))
"""
IS_LINUX = sys.platform.startswith('linux')


def prctl(option, value):
    """Call prctl, where there is one (Linux)."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


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


class Process:
    """A process of the job, and the last line of its output as far as it has come."""

    def __init__(self, name, command, environment):
        self.name = name
        agent = os.getpid()

        def die_with_agent():
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != agent:
                os._exit(1)

        self.popen = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      start_new_session=True,
                                      preexec_fn=die_with_agent)  # noqa: PLW1509
        os.set_blocking(self.popen.stdout.fileno(), False)
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder('utf-8')('replace'), translate=True)
        self._begun = ''

    def read_lines(self):
        """Return the lines that have come since the last call, None at the end of the output."""
        try:
            read = os.read(self.popen.stdout.fileno(), LONGEST_LINE)
        except BlockingIOError:
            return []
        *lines, self._begun = (self._begun + self._decoder.decode(read, not read)).split('\n')
        if self._begun and (not read or len(self._begun) > LONGEST_LINE):
            lines.append(self._begun)
            self._begun = ''
        return lines if read or lines else None


class Agent:
    """The processes of one host, and the connection to the launcher."""

    def __init__(self):
        self._environment = dict(os.environ)
        self._processes = {}  # by number
        self._read, self._unsent = b'', bytearray()
        self._heard = self._spoken = time.monotonic()
        self._timeout = SECONDS_TO_BE_PREPARED
        self._ending_since = None
        self._handlers = {'prepare': self._prepare, 'start': self._start}

    def run(self):
        """Follow the orders, until all is ended."""
        signal.alarm(0)  # of the wait for this source
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        os.set_blocking(sys.stdout.fileno(), False)
        try:
            while not self._has_ended():
                self._take_turn()
        finally:
            self._signal(signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_BETWEEN_BEATS
        while self._unsent and time.monotonic() < deadline:
            self._take_turn()

    def _take_turn(self):
        reading = {process.popen.stdout: process for process in self._processes.values()
                   if not process.popen.stdout.closed}
        readable = [] if len(self._unsent) > MOST_UNSENT_BYTES else list(reading)
        if self._ending_since is None:
            readable.append(sys.stdin)
        readable, _, _ = select.select(readable, [sys.stdout] if self._unsent else [], [],
                                       SECONDS_PER_TURN)
        for stream in readable:
            if stream is sys.stdin:
                self._listen()
            else:
                self._pass_on(reading[stream])
        self._reap()
        self._watch_the_clock()
        self._send()

    def _listen(self):
        read = os.read(sys.stdin.fileno(), LONGEST_LINE)
        if not read:
            self._end()
            return
        self._heard = time.monotonic()
        *lines, self._read = (self._read + read).split(b'\n')
        for line in lines:
            order = json.loads(line)
            if order:
                try:
                    self._handlers[order.pop('order')](**order)
                except (OSError, subprocess.SubprocessError) as error:
                    self._report(error=str(error))

    def _prepare(self, environment, directory, umask, timeout):
        """Take over environment, directory and umask; tell the versions that are found there."""
        self._timeout = timeout
        os.chdir(directory)
        os.umask(umask)
        self._environment.update(environment)
        self._environment.pop('PORT', None)  # ps-lite would bind it in every process
        self._environment['PATH'] = os.pathsep.join(
            [os.path.dirname(sys.executable), self._environment.get('PATH', os.defpath)])
        found = subprocess.run([sys.executable, '-c', VERSIONS], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, env=self._environment, check=False,
                               timeout=SECONDS_TO_BE_PREPARED)
        if found.returncode:
            self._report(error='the versions of svrg_optimization and mxnet cannot be found: %s'
                         % (found.stderr.strip().splitlines() or ['no reason given'])[-1])
            return
        self._report(versions=json.loads(found.stdout.splitlines()[-1]))
        self._heard = time.monotonic()

    def _start(self, processes, environment, interface_towards):
        """Start processes; a command that is None serves."""
        common = dict(self._environment, **environment)
        of_workers = self._threads_of_workers(processes, common)
        if interface_towards is not None and 'DMLC_INTERFACE' not in common:
            common['DMLC_NODE_HOST'] = address_towards(interface_towards)
        for given in processes:
            command = given['command'] or [sys.executable, '-c', 'import mxnet']
            try:
                process = Process(given['name'], command, dict(
                    common, DMLC_ROLE=given['role'],
                    **(of_workers if given['role'] == 'worker' else {})))
            except OSError as error:
                self._report(error='%s: cannot be started: %s' % (' '.join(command), error),
                             status=127)
                return
            self._processes[process.popen.pid] = process
            self._report(started=process.name, pid=process.popen.pid)

    def _threads_of_workers(self, processes, environment):
        """Return variables by which workers share the cores, unless somebody has chosen them.

        Each would otherwise take half of the cores, or all. The servers work while
        the workers wait, and the scheduler computes nothing.
        """
        workers = sum(given['role'] == 'worker' for given in processes)
        if not workers or 'OMP_NUM_THREADS' in environment:
            return {}
        cores = number_of_cores()
        threads = str(max(1, cores // workers))
        self._report(says='each worker has OMP_NUM_THREADS=%s (cores: %d, workers: %d); --env '
                     'OMP_NUM_THREADS=N sets another number' % (threads, cores, workers))
        return {'OMP_NUM_THREADS': threads}

    def _pass_on(self, process):
        lines = process.read_lines()
        if lines is None:
            process.popen.stdout.close()
        for line in lines or []:
            self._report(line=line, of=process.name)

    def _reap(self):
        """Report which processes have ended; those that lost their parents come here too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                process = self._processes.get(pid)
                if process is None:
                    continue
                process.popen.returncode = (-os.WTERMSIG(status) if os.WIFSIGNALED(status)
                                            else os.WEXITSTATUS(status))
                for _ in range(2):  # what a pipe holds, and its end
                    if not process.popen.stdout.closed:
                        self._pass_on(process)
                self._report(ended=process.name, status=process.popen.returncode)

    def _watch_the_clock(self):
        now = time.monotonic()
        if self._timeout is not None and now - self._heard > self._timeout:
            self._end()
        if now - self._spoken > SECONDS_BETWEEN_BEATS and not self._unsent:
            self._report()
        if self._ending_since is not None and now - self._ending_since > SECONDS_TO_TERMINATE:
            self._signal(signal.SIGKILL)

    def _report(self, **what):
        self._unsent += json.dumps(what).encode() + b'\n'
        self._spoken = time.monotonic()

    def _send(self):
        try:
            del self._unsent[:os.write(sys.stdout.fileno(), self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self._unsent.clear()
            self._end()

    def _signal(self, number):
        send, pids = (os.kill, processes_below()) if IS_LINUX else (os.killpg, self._processes)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(pid, number)

    def _end(self):
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            self._signal(signal.SIGTERM)

    def _has_ended(self):
        if self._ending_since is None:
            return False
        left = processes_below() if IS_LINUX else [
            pid for pid, process in self._processes.items() if process.popen.returncode is None]
        seconds = time.monotonic() - self._ending_since
        return not left or seconds > SECONDS_TO_TERMINATE + SECONDS_TO_KILL


def number_of_cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if IS_LINUX else os.cpu_count()


def address_towards(host):
    """Return the IPv4 address of this host on the interface that routes to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        return probe.getsockname()[0]


if __name__ == '__main__':
    Agent().run()

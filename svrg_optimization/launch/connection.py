"""Connection to the agent of one host, which starts over ssh, or on this machine."""

import contextlib
import inspect
import json
import shlex
import signal
import subprocess
import sys
import threading
import time

from . import agent
from .output import pass_on, say

# The agent's source is the first line that it reads, and must come within a minute.
BOOTSTRAP = ('import json, signal; signal.alarm(60); '
             'exec(compile(*json.loads(open(0, "rb", 0, closefd=False).readline()), "exec"))')
# The connection is that of the ssh which is started here, and not shared with others.
SSH_OPTIONS = {'BatchMode': 'yes', 'ControlMaster': 'no', 'ControlPath': 'none',
               'ClearAllForwardings': 'yes'}
NO_SUCH_COMMAND = (126, 127)  # statuses of a shell


class Process:
    """Process of the job, as the agent of its host reports it; it serves without a command."""

    def __init__(self, role, name, command=None):
        self.role, self.name, self.command = role, name, command
        self.pid = self.returncode = None
        self._last_line = self._error = None
        self._is_in_traceback = False

    def take_line(self, line):
        """Remember a line of its output, if it may be the reason for its end."""
        self._last_line = line
        if line.endswith('Traceback (most recent call last):'):  # also below an error of MXNet
            self._is_in_traceback = True
        elif self._is_in_traceback and line and not line.startswith(' '):
            self._is_in_traceback, self._error = False, line

    def is_running(self):
        """Tell whether the process has not ended."""
        return self.returncode is None

    def has_failed(self):
        """Tell whether the process has ended with a status other than 0."""
        return self.returncode not in (None, 0)

    @property
    def exit_status(self):
        """Exit status, as a shell gives it."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def describe_failure(self):
        """Return a sentence on how the process has failed, and what it said of the reason."""
        if self.returncode < 0:
            how, why = 'was killed by %s' % signal.Signals(-self.returncode).name, ''
        else:
            how = 'exited with status %d' % self.returncode
            why = ('. Its error: %s' % self._error if self._error is not None else
                   '. Its last line: %s' % self._last_line if self._last_line else '')
        return '%s (process %d) %s: ending the others%s' % (self.name, self.pid, how, why)


class Connection:
    """Connection to the agent on a host, or on this machine if the host is None.

    Two threads print what the agent reports and what ssh says.
    """

    def __init__(self, host, ssh, python, connect_timeout, link_timeout):
        self.name = 'this machine' if host is None else host
        self.versions = self.error = None
        self.status = 1  # of the launcher, if there is an error
        command = [sys.executable if host is None else python, '-I', '-c', BOOTSTRAP]
        if host is not None:
            # An ssh that has outlived the launcher ends after two intervals without an answer, and
            # so later than the launcher notices the same.
            options = dict(SSH_OPTIONS, ConnectTimeout=connect_timeout, ServerAliveCountMax=1,
                           ServerAliveInterval=(3 * link_timeout + 4) // 5)
            command = [*ssh, '-T', '-x', *('-o%s=%s' % option for option in options.items()),
                       '--', host, 'exec ' + ' '.join(map(shlex.quote, command))]
        self._link_timeout, self._python = link_timeout, python
        self._processes = {}
        self._last_words = ''
        self._waits_since = time.monotonic()
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True)
        self._readers = [threading.Thread(target=read, daemon=True)
                         for read in (self._read_reports, self._read_words)]
        for reader in self._readers:
            reader.start()
        self.send([inspect.getsource(agent), agent.__file__])

    def send(self, order):
        """Send an order, or an empty one as a sign of life."""
        with contextlib.suppress(OSError):  # the readers see that the agent is gone
            self._popen.stdin.write(json.dumps(order).encode() + b'\n')
            self._popen.stdin.flush()

    def start(self, processes, environment, interface_towards):
        """Order the start of processes, which others reach on the interface towards an address."""
        self._processes = {process.name: process for process in processes}
        self.send({'order': 'start', 'environment': environment,
                   'interface_towards': interface_towards,
                   'processes': [{'name': process.name, 'role': process.role,
                                  'command': process.command} for process in processes]})

    def failure(self):
        """Return why the agent cannot be used any more, None if it can."""
        if self.error is not None:
            return '%s: %s' % (self.name, self.error)
        if self.is_silent():
            return '%s: does not respond: nothing has come from it for %d seconds' % (
                self.name, self._link_timeout)
        if self._readers[0].is_alive():
            return None
        self.wait(time.monotonic() + 1)
        if self.versions is None and self._popen.returncode in NO_SUCH_COMMAND:
            return '%s: cannot run the Python %s; --python names another one%s' % (
                self.name, self._python, self._last_words)
        return '%s: %s (status %s)%s' % (
            self.name, 'cannot be reached' if self.versions is None else 'the connection broke',
            self._popen.returncode, self._last_words)

    def is_silent(self):
        """Tell whether the agent has said nothing for too long, while it could have been read."""
        since = self._waits_since
        return (None not in (since, self.versions, self._link_timeout)
                and time.monotonic() - since > self._link_timeout)

    def close(self):
        """Let the agent end its processes and itself."""
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def wait(self, deadline):
        """Wait until a time for the end of the agent; return whether it has come."""
        try:
            self._popen.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return False
        for reader, stream in zip(self._readers, (self._popen.stdout, self._popen.stderr)):
            reader.join(1)
            if not reader.is_alive():
                stream.close()
        return True

    def _read_reports(self):
        while True:
            self._waits_since = time.monotonic()
            line = self._popen.stdout.readline()
            self._waits_since = None  # to pass it on may take long, if nobody reads it
            if not line:
                return
            try:
                report = json.loads(line)
                self._take_report(**report)
            except (ValueError, TypeError):  # what the host's shell prints at its start
                pass_on(line.decode(errors='replace').rstrip('\r\n'), self.name)

    def _take_report(self, line=None, of=None, started=None, pid=None, ended=None, status=None,
                     versions=None, error=None, says=None):
        if line is not None:
            self._processes[of].take_line(line)
            pass_on(line, of)
        elif started is not None:
            self._processes[started].pid = pid
            say('%s is process %d' % (started, pid))
        elif ended is not None:
            self._processes[ended].returncode = status
        elif versions is not None:
            self.versions = versions
        elif says is not None:
            say('%s: %s' % (self.name, says))
        elif error is not None:
            self.status = status or 1
            self.error = error

    def _read_words(self):
        for line in self._popen.stderr:
            text = line.decode(errors='replace').rstrip('\r\n')
            self._last_words = ': ' + text
            pass_on(text, self.name)

"""Hosts of one machine: network namespaces with an sshd each, joined by a bridge.

The bridge is in a namespace too, the hub, where a launcher runs. Nothing in the
machine's own network changes.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

NEEDED = ('ip', 'unshare', 'ssh', 'ssh-keygen', 'sshd')
SECONDS = 20
HUB_ADDRESS, HOST_ADDRESS = '10.77.0.254', '10.77.0.%d'
_numbers = itertools.count()


def find(program):
    """Return the path of a program, also of one for root alone."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin',
                                                       '/sbin']))


def lacking():
    """Return what this machine lacks to have such hosts, as text; empty if nothing."""
    needs = [name for name in NEEDED if find(name) is None]
    if not hasattr(os, 'geteuid') or os.geteuid() != 0:
        needs.append('root')
    make = '"$0" link add name one type veth peer name two && "$0" link add name three type bridge'
    if not needs and subprocess.run([find('unshare'), '--net', 'sh', '-c', make, find('ip')],
                                    check=False, stderr=subprocess.DEVNULL).returncode:
        needs.append('network namespaces with veth devices and a bridge')
    return ', '.join(needs)


def ip(*arguments):
    """Call ip; return what it prints."""
    return subprocess.run([find('ip'), *arguments], check=True, text=True, stderr=subprocess.STDOUT,
                          stdout=subprocess.PIPE, timeout=SECONDS).stdout


class Network:
    """So many hosts h1, h2, ..., the hub, and what ssh needs to reach them, in a folder."""

    def __init__(self, folder, count):
        self.hosts = ['h%d' % (i + 1) for i in range(count)]
        self._folder = Path(folder)
        self._prefix = 'svrg-%d-%d-' % (os.getpid(), next(_numbers))
        self._servers = {}
        self._made = []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in reversed(self._made):
            with contextlib.suppress(subprocess.SubprocessError):
                self.kill_all(name)
            with contextlib.suppress(subprocess.SubprocessError):
                ip('netns', 'del', self._prefix + name)

    def _make(self):
        self._add_namespace('hub')
        hub = ['-n', self._prefix + 'hub']
        ip(*hub, 'link', 'add', 'bridge', 'type', 'bridge')
        ip(*hub, 'addr', 'add', HUB_ADDRESS + '/24', 'dev', 'bridge')
        ip(*hub, 'link', 'set', 'bridge', 'up')
        for key in ('host_key', 'user_key'):
            subprocess.run([find('ssh-keygen'), '-q', '-t', 'ed25519', '-N', '', '-f',
                            str(self._folder / key)], check=True, timeout=SECONDS)
        configuration = []
        for number, host in enumerate(self.hosts, 1):
            self._add_namespace(host)
            ip(*hub, 'link', 'add', host, 'type', 'veth', 'peer', 'name', 'eth0', 'netns',
               self._prefix + host)
            ip(*hub, 'link', 'set', host, 'master', 'bridge', 'up')
            ip('-n', self._prefix + host, 'addr', 'add', HOST_ADDRESS % number + '/24', 'dev',
               'eth0')
            ip('-n', self._prefix + host, 'link', 'set', 'eth0', 'up')
            configuration += ['Host ' + host, '  HostName ' + HOST_ADDRESS % number]
        configuration += ['Host *', '  User root',
                          '  IdentityFile %s' % (self._folder / 'user_key'),
                          '  IdentitiesOnly yes', '  StrictHostKeyChecking no',
                          '  UserKnownHostsFile /dev/null', '  LogLevel ERROR']
        self.ssh_config.write_text('\n'.join(configuration) + '\n')
        for host in self.hosts:
            self.boot(host)

    def _add_namespace(self, name):
        ip('netns', 'add', self._prefix + name)
        self._made.append(name)
        ip('-n', self._prefix + name, 'link', 'set', 'lo', 'up')
        # As the page on distributed training says: TCP gives up data on their way after 13 s.
        subprocess.run(self.command(name, 'sh', '-c', 'echo 5 > /proc/sys/net/ipv4/tcp_retries2'),
                       check=True, timeout=SECONDS)

    @property
    def ssh_config(self):
        """Path of ssh's configuration, which knows the hosts' names."""
        return self._folder / 'ssh_config'

    def command(self, name, *command):
        """Return a command as it runs on a host, or on the hub."""
        return [find('ip'), 'netns', 'exec', self._prefix + name, *command]

    def boot(self, host):
        """Start the sshd of a host, and wait until it listens."""
        Path('/run/sshd').mkdir(mode=0o755, exist_ok=True)  # sshd asks for it
        configuration = self._folder / (host + '.sshd_config')
        configuration.write_text('\n'.join([
            'HostKey %s' % (self._folder / 'host_key'), 'PidFile none', 'UsePAM no',
            'AuthorizedKeysFile %s' % (self._folder / 'user_key.pub'), 'StrictModes no',
            'PasswordAuthentication no', 'PermitRootLogin prohibit-password']) + '\n')
        log = self._folder / (host + '.sshd_log')
        with open(log, 'wb') as file:
            self._servers[host] = subprocess.Popen(
                self.command(host, find('sshd'), '-D', '-e', '-f', str(configuration)),
                stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        deadline = time.monotonic() + SECONDS
        while 'listening' not in log.read_text():
            assert self._servers[host].poll() is None and time.monotonic() < deadline, (
                log.read_text())
            time.sleep(0.02)

    def set_link(self, host, state):
        """Take the link of a host down, or up again: the plug at the switch."""
        ip('-n', self._prefix + 'hub', 'link', 'set', host, state)

    def processes(self, name):
        """Map the processes on a host, or on the hub, to their names; without ssh's servers."""
        found = {}
        for pid in map(int, ip('netns', 'pids', self._prefix + name).split()):
            with contextlib.suppress(OSError):
                program = Path('/proc/%d/comm' % pid).read_text().strip()
                state = Path('/proc/%d/stat' % pid).read_text().rpartition(')')[2].split()[0]
                if not program.startswith('sshd') and state != 'Z':
                    found[pid] = program
        return found

    def all_processes(self):
        """Return the processes of all hosts and the hub, by number."""
        return {pid: program for name in ('hub', *self.hosts)
                for pid, program in self.processes(name).items()}

    def kill_all(self, name):
        """Kill all processes of a host at once, with its sshd, as a reboot does."""
        while True:
            pids = ip('netns', 'pids', self._prefix + name).split()
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if name in self._servers:
                self._servers.pop(name).wait(SECONDS)
            if not pids:
                return
            time.sleep(0.02)

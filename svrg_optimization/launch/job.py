"""One job: its processes, and the agents of their hosts."""

import fnmatch
import math
import os
import signal
import time

from . import agent
from .connection import Connection, Process
from .hosts import HostsError, address_for, free_port, place
from .output import begin_to_end, nobody_reads, say

SECONDS_UNTIL_A_WAIT_IS_SAID = 5
# What an agent needs to end all that it has started, and until we know it.
SECONDS_TO_END = agent.SECONDS_TO_TERMINATE + agent.SECONDS_TO_KILL
SECONDS_TO_HEAR_OF_IT = 5
SECONDS_PER_TURN = 0.05
TRAVELLING = ['PYTHON*', 'LD_LIBRARY_PATH', 'MXNET_*', 'DMLC_*', 'PS_*', 'OMP_*', 'KMP_*', 'MKL_*',
              'DNNL_*', 'CUDA_*', 'NCCL_*', 'SVRG_OPTIMIZATION_*']
OF_ONE_HOST = ['DMLC_NODE_HOST']
PACKAGES = ['svrg_optimization', 'mxnet']


class Stopped(SystemExit):
    """A signal that ends the job, with the exit status that a shell would give."""

    def __init__(self, number):
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def environment_of(given):
    """Return the variables for all hosts: the usual ones, and each NAME, PATTERN or NAME=VALUE."""
    patterns = TRAVELLING + [name for name in given if '=' not in name]
    found = {name: value for name, value in os.environ.items() if name not in OF_ONE_HOST
             and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    return {'PYTHONUNBUFFERED': '1', **found,
            **dict(name.split('=', 1) for name in given if '=' in name)}


class Job:
    """A scheduler on this machine, and servers and workers on hosts, or here without hosts.

    Parameters
    ----------
    args : argparse.Namespace
        What the launcher was called with.
    hosts : dict of str to (int or None), or None
        Hosts, with their slots.
    """

    def __init__(self, args, hosts):
        self._args, self._is_local = args, hosts is None
        names = [('server', number, None) for number in range(args.servers)]
        names += [('worker', number, args.command) for number in range(args.workers)]
        self._processes = {None: [Process('scheduler', 'scheduler')]}
        for host, (role, number, command) in zip(place(hosts or {None: None}, len(names)), names):
            name = '%s %d' % (role, number) + ('' if self._is_local else ' on %s' % host)
            self._processes.setdefault(host, []).append(Process(role, name, command))
        used = [host for host in self._processes if host is not None]
        self._address = args.scheduler_host or (address_for(used, args.ssh) if used
                                                else '127.0.0.1')
        # On this machine a connection breaks when the other side ends, and not before.
        self._link_timeout = None if self._is_local else args.link_timeout
        self._connections = {}
        self._last_beat = time.monotonic()

    def run(self):
        """Run the job to its end; return the exit status."""
        try:
            self._connect()
            return self._wait_until_prepared() or self._compare_versions() or self._work()
        except Stopped as stopped:
            say('received %s: ending all' % stopped.name)
            raise
        finally:
            self._end()

    def _connect(self):
        args = self._args
        for host in self._processes:
            try:
                self._connections[host] = Connection(host, args.ssh, args.python,
                                                     args.connect_timeout, self._link_timeout)
            except OSError as error:
                raise HostsError('%s: ssh cannot be started: %s' % (host, error)) from error
        environment, umask = environment_of(args.env), os.umask(0)
        os.umask(umask)
        for connection in self._connections.values():
            connection.send({'order': 'prepare', 'environment': environment,
                             'directory': os.getcwd(), 'umask': umask,
                             'timeout': self._link_timeout})

    def _wait_until_prepared(self):
        begin = time.monotonic()
        deadline, wait_is_said_at = (begin + self._args.connect_timeout,
                                     begin + SECONDS_UNTIL_A_WAIT_IS_SAID)
        while True:
            waiting = []
            for connection in self._connections.values():
                failure = connection.failure()
                if failure:
                    say(failure)
                    return connection.status
                if connection.versions is None:
                    waiting.append(connection.name)
            if not waiting:
                return 0
            if time.monotonic() > deadline:
                say('%s: no answer within %d seconds' % (', '.join(waiting),
                                                         self._args.connect_timeout))
                return 1
            if time.monotonic() > wait_is_said_at:
                say('waiting for %s' % ', '.join(waiting))
                wait_is_said_at = deadline
            self._take_turn()

    def _compare_versions(self):
        failed = 0
        for connection in self._connections.values():
            if not self._is_local:
                say('%s has %s' % (connection.name, ', '.join(
                    '%s %s' % (package, version or 'none')
                    for package, version in connection.versions.items())))
        for package in PACKAGES:
            names = {}
            for connection in self._connections.values():
                names.setdefault(connection.versions.get(package), []).append(connection.name)
            if len(names) > 1:
                say('all hosts must have the same version of %s, not %s' % (package, ' and '.join(
                    '%s (%s)' % (version or 'none', ', '.join(hosts))
                    for version, hosts in names.items())))
                failed = 1
        return failed

    def _work(self):
        cluster = {'DMLC_PS_ROOT_URI': self._address,
                   'DMLC_PS_ROOT_PORT': str(free_port(self._address)),
                   'DMLC_NUM_WORKER': str(self._args.workers),
                   'DMLC_NUM_SERVER': str(self._args.servers),
                   'SVRG_OPTIMIZATION_LAUNCHER': '1'}
        if self._is_local:
            cluster['DMLC_INTERFACE'] = 'lo'
        for host, connection in self._connections.items():
            connection.start(self._processes[host], cluster, host and self._address)
        workers = self._in_roles('worker')
        first_end = None
        while any(process.is_running() for process in workers):
            failed = self._say_failure()
            if failed:
                return failed
            if first_end is None and not all(process.is_running() for process in workers):
                first_end = time.monotonic()
            if first_end and time.monotonic() - first_end > SECONDS_UNTIL_A_WAIT_IS_SAID:
                first_end = math.inf
                say_who_has_ended(workers)
            self._take_turn()
        # A server that ends with status 0 follows the workers, and need not be their end.
        for process in workers:
            if process.has_failed():
                say(process.describe_failure())
                return process.exit_status
        return 0

    def _in_roles(self, *roles):
        return [process for processes in self._processes.values() for process in processes
                if process.role in roles]

    def _say_failure(self):
        """Say which process or connection has failed; return the exit status, 0 if none has."""
        for process in self._in_roles('scheduler', 'server', 'worker'):
            if process.has_failed():
                say(process.describe_failure())
                return process.exit_status
        for connection in self._connections.values():
            failure = connection.failure()
            if failure:
                say('%s: ending the others' % failure)
                return connection.status
        return 0

    def _take_turn(self):
        time.sleep(SECONDS_PER_TURN)
        if nobody_reads():
            raise Stopped(signal.SIGPIPE)
        if time.monotonic() - self._last_beat > agent.SECONDS_BETWEEN_BEATS:
            self._last_beat = time.monotonic()
            for connection in self._connections.values():
                connection.send({})

    def _end(self):
        begin_to_end()
        for connection in self._connections.values():
            connection.close()
        deadline = time.monotonic() + SECONDS_TO_END + SECONDS_TO_HEAR_OF_IT
        for connection in self._connections.values():
            has_begun = connection.versions is not None
            answers = has_begun and not connection.is_silent()
            if not connection.wait(deadline if answers else 0) and has_begun:
                say('%s: does not respond; if its agent runs, it ends all processes there within '
                    '%d seconds' % (connection.name, self._args.link_timeout + SECONDS_TO_END))


def say_who_has_ended(workers):
    """Name the workers that have ended while others still run."""
    ended, running = ([process.name for process in workers if process.is_running() == runs]
                      for runs in (False, True))
    say('%s ended with status 0 over %d seconds ago: whoever needs them waits for ever (%s)' % (
        ', '.join(ended), SECONDS_UNTIL_A_WAIT_IS_SAID, ', '.join(running)))

"""One job: its processes, and the agents of their hosts."""

import fnmatch
import os
import time

from . import agent
from .connection import Connection, Process, say
from .hosts import HostsError, address_for, free_port, place

SECONDS_TO_END_ITSELF = 20
# What an agent needs to end all that it has started, and until we know it.
SECONDS_TO_END = agent.SECONDS_TO_TERMINATE + agent.SECONDS_TO_KILL
SECONDS_TO_HEAR_OF_IT = 5
SECONDS_PER_TURN = 0.05
TRAVELLING = ['PYTHON*', 'LD_LIBRARY_PATH', 'MXNET_*', 'DMLC_*', 'PS_*', 'OMP_*', 'KMP_*', 'MKL_*',
              'DNNL_*', 'CUDA_*', 'NCCL_*', 'SVRG_OPTIMIZATION_*']
OF_ONE_HOST = ['DMLC_NODE_HOST']
PACKAGES = ['svrg_optimization', 'mxnet']


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
        environment = environment_of(args.env)
        for host, connection in self._connections.items():
            connection.send({'order': 'prepare', 'environment': environment,
                             'directory': os.getcwd(), 'timeout': self._link_timeout,
                             'is_first_in_path': host is not None})

    def _wait_until_prepared(self):
        deadline = time.monotonic() + self._args.connect_timeout
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
                   'DMLC_NUM_SERVER': str(self._args.servers)}
        if self._is_local:
            cluster['DMLC_INTERFACE'] = 'lo'
        for host, connection in self._connections.items():
            connection.start(self._processes[host], cluster, host and self._address)
        working, serving = self._in_roles('worker'), self._in_roles('scheduler', 'server')
        while any(process.is_running() for process in working):
            failed = self._say_failure()
            if failed:
                return failed
            self._take_turn()
        # A server that ends with status 0 follows the workers, and need not be their end.
        for process in working:
            if process.has_failed():
                say('%s: ending the others' % process.describe_end())
                return process.exit_status
        deadline = time.monotonic() + SECONDS_TO_END_ITSELF
        while any(process.is_running() for process in serving) and time.monotonic() < deadline:
            self._take_turn()
        return 0

    def _in_roles(self, *roles):
        return [process for processes in self._processes.values() for process in processes
                if process.role in roles]

    def _say_failure(self):
        """Say which process or connection has failed; return the exit status, 0 if none has."""
        for process in self._in_roles('scheduler', 'server', 'worker'):
            if process.has_failed():
                say('%s: ending the others' % process.describe_end())
                return process.exit_status
        for connection in self._connections.values():
            failure = connection.failure()
            if failure:
                say('%s: ending the others' % failure)
                return connection.status
        return 0

    def _take_turn(self):
        time.sleep(SECONDS_PER_TURN)
        if time.monotonic() - self._last_beat > agent.SECONDS_BETWEEN_BEATS:
            self._last_beat = time.monotonic()
            for connection in self._connections.values():
                connection.send({})

    def _end(self):
        for connection in self._connections.values():
            connection.close()
        deadline = time.monotonic() + SECONDS_TO_END + SECONDS_TO_HEAR_OF_IT
        for connection in self._connections.values():
            has_begun = connection.versions is not None
            answers = has_begun and not connection.is_silent()
            if not connection.wait(deadline if answers else 0) and has_begun:
                say('%s: does not answer; its agent ends all processes there within %d seconds' % (
                    connection.name, self._args.link_timeout + SECONDS_TO_END))

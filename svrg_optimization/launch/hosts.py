"""Hosts of a job: the file that lists them, who runs where, and addresses."""

import itertools
import re
import socket
import subprocess

from .agent import address_towards

SECONDS_TO_READ_CONFIGURATION = 10


class HostsError(Exception):
    """Hosts on which the job cannot run, for a reason that the message gives."""


def read_hosts(path):
    """Return the hosts of a file, each with the number of its slots, None if that is not limited.

    Raises
    ------
    OSError
        If the file cannot be read.
    HostsError
        If a line is not ``host [slots=number]``, a host occurs twice, or there is none.
    """
    hosts = {}
    with open(path, encoding='utf-8-sig', errors='replace') as file:
        for number, text in enumerate(file, 1):
            words = text.partition('#')[0].split()
            if not words:
                continue
            where = '%s, line %d' % (path, number)
            slots = re.fullmatch('slots=([1-9][0-9]*)', words[1]) if len(words) == 2 else None
            if words[0].startswith('-') or '=' in words[0] or (len(words) > 1 and not slots):
                raise HostsError('%s: must be a host, and slots=N with N of 1 or more if its '
                                 'processes are limited, not %r' % (where, text.strip()))
            if words[0] in hosts:
                raise HostsError('%s: the host %s must be there once only' % (where, words[0]))
            hosts[words[0]] = int(slots.group(1)) if slots else None
    if not hosts:
        raise HostsError('%s: must name at least one host' % path)
    return hosts


def place(hosts, count):
    """Return the host of each of so many processes: one after the other, while they have slots.

    Raises
    ------
    HostsError
        If all hosts together have fewer slots.
    """
    if None not in hosts.values() and sum(hosts.values()) < count:
        raise HostsError('the hosts must have a slot for each of the %d servers and workers, and '
                         'have %d' % (count, sum(hosts.values())))
    rounds = ([host for host, slots in hosts.items() if slots is None or number < slots]
              for number in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(rounds), count))


def address_for(hosts, ssh):
    """Return the IPv4 address of this machine on the interface that routes to the hosts.

    The loopback device counts only if it leads to all of them.

    Raises
    ------
    HostsError
        If the address of a host, or the way to it, is not known.
    """
    for host in hosts:
        try:
            own = address_towards(_resolve(host, ssh))
        except (OSError, subprocess.SubprocessError) as error:
            raise HostsError('%s: its address is not known (%s). Mend the name or, if only '
                             'this machine does not know it, give --scheduler-host'
                             % (host, error)) from error
        if not own.startswith('127.'):
            break
    return own


def _resolve(host, ssh):
    """Return the IPv4 address of a host, by the name that ssh's configuration gives it."""
    found = subprocess.run([*ssh, '-G', '--', host], stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                           timeout=SECONDS_TO_READ_CONFIGURATION).stdout
    name = re.search('^hostname (.+)$', found, re.MULTILINE)
    return socket.getaddrinfo(name.group(1) if name else host.rpartition('@')[2], None,
                              socket.AF_INET)[0][4][0]


def free_port(address):
    """Return a port of one of this machine's addresses that nobody listens on.

    Raises
    ------
    HostsError
        If it is no address of this machine.
    """
    with socket.socket() as listener:
        try:
            listener.bind((address, 0))
        except OSError as error:
            raise HostsError('the scheduler\'s host must have an IPv4 address of this machine, '
                             'not %s (%s)' % (address, error)) from error
        return listener.getsockname()[1]

"""Watch of a job's processes over each other: all end when one is lost.

Each has a connection to that of rank 0, and says bye when it has succeeded. The launcher is
not enough: Open MPI leaves processes behind when it loses a host. Where no worker has made a
KVStore, and all have ended, rank 0 says bye to the servers, which wait for them as it does.
"""

import contextlib
import os
import queue
import socket
import sys
import threading
import time

HELLO, BYE = b'svrg_optimization', b'bye'
SECONDS_FOR_THE_LAUNCHER = 3  # which may see first what has failed, and its exit status
byes = queue.Queue()
_has_left = threading.Event()
has_served = threading.Event()


def over_all(listener, link_timeout, workers, others):
    """Watch over all others, as rank 0."""
    connections = []
    start(_end_what_nobody_uses, connections, workers, others)
    while True:
        connection, (host, _) = listener.accept()
        connections.append(connection)
        start(_wait, connection, 'A process on ' + host, link_timeout)


def _end_what_nobody_uses(connections, workers, others):
    while byes.qsize() < workers:  # which have ended: a server says bye when rank 0 has served
        time.sleep(1)
    time.sleep(SECONDS_FOR_THE_LAUNCHER)
    if not has_served.is_set():
        print('All workers have ended, and none has made a KVStore: ending the servers', flush=True)
        for connection in connections:
            say_bye(connection)
        say_success(others)
        os._exit(0)


def say_success(others):
    """Wait until all others have succeeded, and say so."""
    for _ in range(others):
        byes.get()
    print('The job has succeeded, in all of its %d processes.' % (others + 1), flush=True)


def over_root(connection, link_timeout):
    """Watch over rank 0."""
    connection.sendall(HELLO)
    start(_wait, connection, 'The scheduler', link_timeout)


def start(function, *arguments):
    """Call a function in a thread that does not keep this process alive."""
    threading.Thread(target=function, args=arguments, daemon=True).start()


def say_bye(connection):
    """Tell the other side that this process has succeeded."""
    _has_left.set()
    with contextlib.suppress(OSError):  # rank 0 is lost
        connection.sendall(BYE)


def _wait(connection, name, link_timeout):
    """Wait for the bye of the other side, or end this process."""
    os.register_at_fork(after_in_child=connection.close)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, link_timeout // 3), (socket.TCP_KEEPCNT, 4),
                          (socket.TCP_KEEPINTVL, link_timeout // 6)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    reason = 'it has ended'
    try:
        if name != 'The scheduler' and connection.recv(len(HELLO), socket.MSG_WAITALL) != HELLO:
            return  # it is none of the job
        if connection.recv(1):
            if name == 'The scheduler':
                say_bye(connection)
                os._exit(0)
            with contextlib.suppress(OSError):
                connection.recv(len(BYE), socket.MSG_WAITALL)  # until its process has ended
            byes.put(name)
            return
        time.sleep(SECONDS_FOR_THE_LAUNCHER)
    except OSError as error:
        reason = error.strerror
    if not _has_left.is_set():
        try:
            print('%s is lost (%s): ending' % (name, reason), file=sys.stderr, flush=True)
        finally:
            os._exit(1)

"""Watch of a job's processes over each other: all end when one is lost.

Each has a connection to that of rank 0, and says bye when it has succeeded. The launcher is
not enough: Open MPI leaves processes behind when it loses a host.
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


def over_all(listener, link_timeout):
    """Watch over all others, as rank 0."""
    while True:
        connection, (host, _) = listener.accept()
        start(_wait, connection, 'A process on ' + host, link_timeout)


def over_root(connection, link_timeout):
    """Watch over rank 0."""
    connection.sendall(HELLO)
    start(_wait, connection, 'The scheduler', link_timeout)


def start(function, *arguments):
    """Call a function in a thread that does not keep this process alive."""
    threading.Thread(target=function, args=arguments, daemon=True).start()


def say_bye(connection):
    """Tell rank 0 that this process has succeeded."""
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

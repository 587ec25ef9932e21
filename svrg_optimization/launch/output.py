"""Output of the launcher: a thread prints it, so that the job ends even if nobody reads it."""

import os
import queue
import sys
import threading
import time

MOST_UNPRINTED_LINES = 1000
SECONDS_TO_PRINT_THE_REST = 1
SECONDS_PER_LOOK = 0.1

_lines = queue.Queue()
_end_of_patience = []
_is_broken = threading.Event()


def start():
    """Start the thread that prints."""
    threading.Thread(target=_print, daemon=True).start()


def say(message, name='launcher'):
    """Print a line with a name in front, but do not wait for it."""
    _lines.put('[%s] %s\n' % (name, message))


def pass_on(line, name):
    """Print a line of a process, and wait for the reader if many lines are left to print.

    The process then waits too. While the job ends, lines that nobody reads are
    dropped after a while.
    """
    while _lines.qsize() > MOST_UNPRINTED_LINES:
        if _end_of_patience and time.monotonic() > _end_of_patience[0]:
            return
        wait_until_printed(SECONDS_PER_LOOK)
    say(line, name)


def begin_to_end():
    """Wait for the reader in `pass_on` for a short time only, from now on."""
    _end_of_patience.append(time.monotonic() + SECONDS_TO_PRINT_THE_REST)


def wait_until_printed(seconds=None):
    """Wait until all is printed, but no longer than a time if one is given."""
    with _lines.all_tasks_done:
        _lines.all_tasks_done.wait_for(lambda: not _lines.unfinished_tasks, seconds)


def nobody_reads():
    """Tell whether the reader is gone."""
    return _is_broken.is_set()


def _print():
    out = sys.stdout.fileno()  # sys.stdout has a lock, which this thread might keep at the end
    while True:
        left = _lines.get().encode(sys.stdout.encoding, 'backslashreplace')
        try:
            while left and out is not None:
                left = left[os.write(out, left):]
        except OSError:
            out = None
            _is_broken.set()
        _lines.task_done()

"""A worker that trains with all others, until that of rank 1 fails at the place that is named."""

import atexit
import functools
import os
import signal
import sys
import threading
import time

import mxnet as mx

from problems import Problem


def announce():
    print('fails at', time.time(), flush=True)


def fail(*_):
    """Raise an error with a cause, over two lines."""
    announce()
    try:
        raise KeyError('the cause')
    except KeyError as error:
        raise ValueError('the reason\nand more') from error


def fit(data=None, **callbacks):
    problem = Problem()
    problem.module().fit(data or problem.iterator(), kvstore=kvstore, eval_metric='mse',
                         num_epoch=10 ** 6, **callbacks)


def wait_for_the_others():
    while True:  # the others come to some barriers, but not to all of these
        kvstore._barrier()


def in_callback():
    fit(batch_end_callback=fail)


def in_custom_loop():
    value = mx.nd.ones(3)
    kvstore.init('value', value)
    kvstore.push('value', value)  # which no other worker does
    fail()


def in_join_of_thread_that_waits():
    thread = threading.Thread(target=wait_for_the_others)
    thread.start()
    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    thread.join()


def exit_in_callback():
    def leave(_):
        announce()
        sys.exit(3)

    fit(batch_end_callback=leave)


def exit_at_once():
    announce()
    os._exit(3)


def raise_keyboard_interrupt():
    announce()
    raise KeyboardInterrupt


def send(number):
    announce()
    os.kill(os.getpid(), number)
    time.sleep(60)


terminate = functools.partial(send, signal.SIGTERM)
crash = functools.partial(send, signal.SIGSEGV)

if __name__ == '__main__':
    place, log = sys.argv[1:]
    atexit.register(print, 'own exit handler', flush=True)
    kvstore = mx.kv.create('dist_sync')
    if kvstore.rank == 1:
        opened = open(log, 'w', encoding='utf-8')  # noqa: SIM115
        opened.write('last words')
        globals()[place]()
    else:
        fit()

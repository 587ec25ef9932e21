"""How a distributed job ends when one of its workers fails or leaves."""

import os
import re
import sys
import time

import pytest

from cluster import HERE, job

pytestmark = pytest.mark.cluster
WORKER = HERE / 'failing_worker.py'
RAISED = 'exited with status 1: ending the others. Its error: '
ERROR = RAISED + 'ValueError: the reason\n'


def seconds_to_end():
    """Two, where each process has a processor."""
    return 2 * max(1, os.getloadavg()[0] / os.cpu_count())


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize('place, status, says', [
    ('in_callback', 1, ERROR),
    slow('in_full_gradient_pass', 1, ERROR),
    slow('in_custom_loop', 1, ERROR),
    slow('in_result_of_thread', 1, ERROR),
    slow('in_join_of_thread_that_waits', 1, ERROR),
    slow('at_import', 1, RAISED + "ModuleNotFoundError: No module named 'no_such_module'\n"),
    slow('exit_in_callback', 3, 'exited with status 3: ending the others'),
    slow('exit_with_message', 1, 'exited with status 1: ending the others'),
    slow('raise_keyboard_interrupt', 130,
         'exited with status 130: ending the others. Its error: KeyboardInterrupt\n'),
    slow('exit_at_once', 3, 'exited with status 3: ending the others'),
    slow('terminate', 143, 'was killed by SIGTERM: ending the others\n'),
    slow('kill_in_real_time', 163, 'was killed by signal 35: ending the others\n'),
    slow('crash', 134, 'was killed by SIGABRT: ending the others\n')])  # by MXNet's handler
def test_a_worker_that_fails_ends_the_job_within_two_seconds(tmp_path, place, status, says):
    log = tmp_path / 'log'
    with job([sys.executable, str(WORKER), place, str(log)]) as running:
        assert running.exit_status() == status, running.output
        ended = time.time()
    failed, began = re.search(r'^\[(worker \d)\] fails at (.*)$', running.output,
                              re.MULTILINE).groups()
    assert ended - float(began) < seconds_to_end(), running.output
    assert re.search(r'^\[launcher\] %s \(process \d+\) %s' % (failed, re.escape(says)),
                     running.output, re.MULTILINE), running.output
    if 'Its error' in says and 'Interrupt' not in says:
        assert '[%s] Traceback (most recent call last):' % failed in running.output
    if place == 'exit_with_message':
        assert '[%s] no such option' % failed in running.output
    if place not in ('exit_at_once', 'terminate', 'kill_in_real_time', 'crash'):
        assert '[%s] own exit handler' % failed in running.output
        assert log.read_text() == 'last words'


PUSH = '''
import mxnet as mx, sys, time
kvstore = mx.kv.create('dist_async')
kvstore.set_optimizer(mx.optimizer.Test())
value = mx.nd.zeros((1000, 1000))
kvstore.init('value', value)
kvstore._barrier()
if kvstore.rank == 0:
    for _ in range(20):
        kvstore.push('value', mx.nd.ones((1000, 1000)))
    sys.exit()
for _ in range(100):
    kvstore.pull('value', out=value)
    if (value == 20).asnumpy().all():
        print('all is here')
        break
    time.sleep(0.1)
'''


@pytest.mark.slow
def test_what_a_worker_pushed_before_its_end_is_not_lost():
    with job([sys.executable, '-c', PUSH]) as running:
        assert running.exit_status() == 0, running.output
    assert 'all is here' in running.output and 'Traceback' not in running.output, running.output

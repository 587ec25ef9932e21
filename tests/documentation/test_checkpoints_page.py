"""The scripts of the page on checkpoints go on after a kill, and in a cluster."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jobs import weights
from mpi import AS_ROOT, MPIRUN, ROLE
from pages import DOCS, blocks_of

PAGE = DOCS / 'checkpoints.md'
SAVED = re.compile(r'(?:model|net)-(\d{4})\.(?:params|states|svrg)')


def changed(script, old, new):
    assert script.count(old) == 1
    return script.replace(old, new)


def in_cluster(script):
    """Return a script of the page with the lines that the page changes for a cluster."""
    diff, = blocks_of(PAGE, 'diff')
    for mark, line, added in re.findall(r'^([- ])(.*\n)((?:\+.*\n)+)', diff, re.MULTILINE):
        script = changed(script, line, line * (mark == ' ') + added[1:].replace('\n+', '\n'))
    return script


def blocks_before(call):
    """Return the page's blocks of Python that define what this call begins to use."""
    return [re.split(r'^%s\(\d' % call, block, flags=re.MULTILINE)[0]
            for block in blocks_of(PAGE)]


def write_script(path, *blocks, call):
    """Write a script that trains up to the epoch that it is given."""
    path.write_text(''.join([*blocks, 'import sys\n%s(int(sys.argv[1]))\n' % call]),
                    encoding='utf-8')
    return path


def of_module(path, change=str):
    return write_script(path, change(blocks_before('train')[0]), call='train')


def slow(block):
    """Return a block whose weights still change when it is killed."""
    return changed(block, "{'learning_rate': 0.2}", "{'learning_rate': 1e-3, 'momentum': 0.9}")


def slow_of_gluon(path):
    data = blocks_before('output =')[0].split('output =')[0]
    return write_script(path, data, slow(blocks_before('train_net')[1]), call='train_net')


def epochs_in(folder):
    matches = map(SAVED.fullmatch, [path.name for path in folder.iterdir()])
    return sorted({int(match[1]) for match in matches if match})


def run(folder, script, end, start=(sys.executable,)):
    """Run a script in a folder; return from which epoch and to which weights each worker went."""
    folder.mkdir(exist_ok=True)
    output = subprocess.run([*start, str(script), str(end)], cwd=folder, check=True,
                            env={**os.environ, **AS_ROOT}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=120).stdout
    assert 'Traceback' not in output
    return [(int(epoch), [float(each) for each in weights.split()])
            for epoch, weights in re.findall(r'from epoch (\d+) \[\[(.*?)\]\]', output)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('written, prefix', [
    (lambda path: of_module(path, slow), 'model'), (slow_of_gluon, 'net')])
def test_after_a_kill_it_ends_on_the_bits_of_an_unbroken_run(written, prefix, tmp_path):
    script = written(tmp_path / 'train.py')
    killed, unbroken = tmp_path / 'killed', tmp_path / 'unbroken'
    killed.mkdir()
    with subprocess.Popen([sys.executable, str(script), '100000'], cwd=killed,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            begin = time.monotonic()
            while max(epochs_in(killed), default=0) < 6:
                assert time.monotonic() < begin + 60
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
    end = max(epochs_in(killed)) + 5
    (began, printed), = run(killed, script, end)
    assert 5 <= began < end
    assert epochs_in(killed) == [end - 1, end]
    assert run(unbroken, script, end) == [(0, printed)]
    np.testing.assert_equal(weights(killed / prefix, end), weights(unbroken / prefix, end))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(MPIRUN is None, reason="needs Open MPI's mpirun")
def test_it_goes_on_in_a_cluster(tmp_path):
    script = of_module(tmp_path / 'train.py', in_cluster)
    start = [MPIRUN, '-np', '4', '--host', 'localhost:4', '--bind-to', 'none', sys.executable,
             *ROLE]
    folder = tmp_path / 'cluster'
    first = run(folder, script, 1, start)
    assert [epoch for epoch, _ in first] == [0, 0] and first[0] == first[1]
    second = run(folder, script, 20, start)
    assert [epoch for epoch, _ in second] == [1, 1] and second[0] == second[1]
    np.testing.assert_allclose(second[0][1], [1, -2, 3], atol=0.015)
    assert epochs_in(folder) == [19, 20]

"""Long runs leave nothing over: no memory, arrays, threads, files or processes.

Each runs in a process of its own (soak.py); `make soak` runs them at full length.
"""

import json
import subprocess
import sys

import pytest

import soak

# An NDArray of 16 numbers takes 700 bytes; so a process that keeps one in each cycle grows by
# more than this, over as many cycles as outweigh the noise.
BYTES_OF_A_CYCLE = 400
NOISE = 200_000
FILES = {'checkpoints': ['model-0001.params', 'model-0001.states', 'model-0001.svrg',
                         'model-symbol.json']}


def scenario(name, short, full):
    return [(name, short), pytest.param(name, full, marks=pytest.mark.soak)]


def run(folder, *arguments):
    """Return what the process held after each tenth of its cycles."""
    result = subprocess.run([sys.executable, soak.__file__, *map(str, arguments)], cwd=str(folder),
                            capture_output=True, check=False, text=True, timeout=3600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def growth(records):
    """Tell what came on top after the first tenth, in which caches and pools fill."""
    return {what: records[-1][what] - first for what, first in records[0].items()}


def bound(cycles):
    return NOISE + BYTES_OF_A_CYCLE * cycles * 0.9


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name, cycles', [
    *scenario('epochs', 100, 10_000), *scenario('devices', 50, 5_000),
    *scenario('bindings', 20, 500), *scenario('checkpoints', 10, 500)])
def test_nothing_is_left_over(tmp_path, monkeypatch, record_property, name, cycles):
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    records = run(tmp_path, name, cycles)
    record_property('records', records)
    print(name, cycles, [record['resident'] for record in records])
    more = growth(records)
    # Short runs are not out of the noise.
    assert more.pop('resident') < max(bound(cycles), 2_000_000 * (cycles < 500))
    assert more == {'arrays': 0, 'files': 0, 'threads': 0, 'processes': 0}
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES.get(name, [])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('leak', [[], ['--leak']])
def test_a_small_array_in_each_cycle_would_be_noticed(tmp_path, leak):
    more = growth(run(tmp_path, 'nothing', 10_000, *leak))
    assert (more['resident'] > bound(10_000)) == bool(leak)
    assert more['arrays'] == 9_000 * bool(leak)

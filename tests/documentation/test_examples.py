"""The examples do what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / 'examples'
pytestmark = pytest.mark.process
slow = pytest.mark.slow


def run(name, *arguments, **given):
    """Run an example; return the lines that it printed, and those of its log."""
    result = subprocess.run([sys.executable, str(EXAMPLES / (name + '.py')), *map(str, arguments)],
                            check=False, capture_output=True, text=True, timeout=600, **given)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines(), result.stderr.splitlines()


def numbers_of(line):
    return [float(each) for each in re.findall(r'[0-9.]+(?:e[+-][0-9]+)?', line)]


def test_readme_has_all_examples():
    readme = (EXAMPLES / 'README.md').read_text(encoding='utf-8')
    for path in [*EXAMPLES.glob('*.py'), *EXAMPLES.glob('*.ipynb')]:
        assert '| [%s](%s) |' % (path.name, path.name) in readme


@pytest.mark.parametrize('name', [
    'high_level_api', pytest.param('intermediate_level_api', marks=slow)])
def test_both_apis_reach_least_squares(name):
    printed, log = run(name)
    weights, least_squares = (np.array(line.split()[-5:], float) for line in printed)
    np.testing.assert_allclose(weights, [1, -2, 3, -4, 5], atol=0.02)
    np.testing.assert_allclose(weights, least_squares, atol=5e-6)
    assert any(line.startswith('Epoch[19] Train-mse=0.0') for line in log)


# What a script prints: for the number of a line its beginning, and the bounds of its last number.
@slow
@pytest.mark.parametrize('name, arguments, expected', [
    ('inference', ['--prefix', 'digits', '--epochs', 6, '--resume-from', 3], {
        0: ('accuracy on 360 held-out digits: ', 0.92, 1),
        -1: ('resumed from epoch 3: the weights are exactly those of the undisturbed', 3, 3)}),
    ('training_on_a_stream', ['--rows', 20050, '--epochs', 8], {
        0: ('mean squared error above that of least squares: ', 0, 1e-6)}),
    ('logistic_regression_csr', [], {-1: ('accuracy on 2000 held-out rows: ', 0.87, 0.9)}),
    ('logistic_regression_csr', ['--l1', 2e-3, '--l2', 0, '--epochs', 20], {
        0: ('weights that are exactly zero: 167 of 200', 200, 200), 1: ('', 0.66, 0.68)}),
    ('gluon_trainer', [], {0: ('Trainer:', 0, 1), 1: ('SVRGTrainer:', 0.95, 1)}),
    ('convolutional_network', [], {-1: ('accuracy on 360 held-out digits: ', 0.96, 1)})])
def test_scripts_print_what_they_promise(tmp_path, name, arguments, expected):
    printed, log = run(name, *arguments, cwd=tmp_path)
    for number, (begin, low, high) in expected.items():
        assert printed[number].startswith(begin)
        assert low <= numbers_of(printed[number])[-1] <= high, printed
    if name == 'gluon_trainer':
        assert numbers_of(printed[1])[0] < 0.96 * numbers_of(printed[0])[0]
    if name == 'training_on_a_stream':
        assert [int(line.split('=')[1]) for line in log if 'Full gradient batches' in line] == [
            5, 10, 20, 40, 80, 160, 201, 201]


@slow
def test_the_notebook_says_what_its_committed_outputs_say(tmp_path, monkeypatch):
    for name in ('JUPYTER_RUNTIME_DIR', 'IPYTHONDIR'):
        monkeypatch.setenv(name, str(tmp_path))
    committed, notebook = (nbformat.read(EXAMPLES / 'svrg_vs_sgd.ipynb', as_version=4)
                           for _ in range(2))
    for cell in notebook.cells:  # fewer curves, none of which decides what is asserted
        cell.source = cell.source.replace('PASSES = 90\n', 'PASSES = 20\n').replace(
            'RATES = (0.1, 0.3, 1, 4, 8, 16)', 'RATES = (0.3, 1, 4)')
    for shown in (committed, nbclient.NotebookClient(
            notebook, timeout=300, record_timing=False,
            resources={'metadata': {'path': str(tmp_path)}}).execute()):
        outputs = [output for cell in shown.cells for output in cell.get('outputs', [])]
        assert sum('image/png' in output.get('data', {}) for output in outputs) == 4
        loss, noise = (output.text for output in outputs if output.get('name') == 'stdout')
        assert loss == '1797 images of 64 pixels, smallest loss 0.873551\n'
        assert noise.startswith('at epoch 36 the noise of SVRG is ')
        assert float(noise.split()[8]) < 1e-10


def test_the_demo_shows_that_svrg_beats_sgd(tmp_path):
    printed, _ = run('svrg_vs_sgd', '--rates', 8, '--output', tmp_path / 'picture.png')
    row, readme = r'(?m)^(\S.*?)  .*\de[-+]\d\d$', EXAMPLES.parent / 'README.md'
    table = [line for line in printed if re.match(row, line)]
    assert [line.split('  ')[0] for line in table] == re.findall(row, readme.read_text('utf-8'))
    assert all(abs(float(line.split()[-1])) < 1e-8 for line in table[4:])
    svrg, newton, decaying, constant = ([float(number) for number in line.split()[-3:]]
                                        for line in table[:4])
    assert svrg[:2] == [36, 90] and 2 * svrg[2] < decaying[2] and 100 * svrg[2] < constant[2]
    assert newton[0] <= 12 and newton[1] <= 90 and newton[2] < 1e-9
    assert (tmp_path / 'picture.png').read_bytes().startswith(b'\x89PNG')

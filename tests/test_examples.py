"""The examples do what they promise."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / 'examples'


def test_svrg_beats_sgd_on_digits(tmp_path):
    picture = tmp_path / 'picture.png'
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'svrg_vs_sgd.py'), '--rates', '0.3', '4',
         '--output', str(picture)], check=True, capture_output=True, text=True)
    table = [line for line in result.stdout.splitlines() if line.endswith(' s')][-3:]
    assert [line.split('  ')[0] for line in table] == [
        'SVRG, constant rate', 'SGD, decaying rate', 'SGD, constant rate']
    epochs, passes, excess = zip(*([float(number) for number in line.split()[-5:-2]]
                                   for line in table))
    assert epochs == (36, 90, 90) and passes == (90, 90, 90)
    assert excess[0] < 1e-5 and excess[0] * 50 < excess[2]
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_benchmark_of_sparse_rows():
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'benchmarks' / 'sparse_rows.py'), '--columns', '1000',
         '2000', '--rounds', '1', '--batches', '3'], check=True, capture_output=True, text=True)
    rows = [line.split('|')[1:-1] for line in result.stdout.splitlines() if line.startswith('| ')]
    assert [row[0].strip() for row in rows] == ['rows of the table', '1000', '2000']
    assert all(float(cell) > 0 for row in rows[1:] for cell in row)


@pytest.mark.parametrize('name, arguments, methods', [
    ('epoch_cost', ['--models', 'linear, 90 features', '--rounds', '1'],
     ['linear, 90 features']),
    ('time_to_suboptimality', ['--rows', '512', '--epochs', '2', '--rates', '1'],
     ['SVRG, stored', 'SVRG', 'contrib SVRG', 'Module, constant rate', 'Module, decaying rate',
      'scikit-learn, SAGA', 'scikit-learn, L-BFGS']),
    ('memory', [], ['LeNet'] * 3 + ['MLP 784-512-256-10'] * 3),
    ('operations', ['--times', '2'],
     ['bare passes of %s' % model for model in ('linear', 'softmax', 'MLP', 'LeNet')] + [
         'SVRG gradients of 160 small parameters', 'copies of 160 small gradients',
         'step of sgd for the MLP', 'gradients of the MLP, added up',
         'a batch of the pass, linear', 'a batch of the pass, linear, stored']),
    pytest.param('growth', ['--rounds', '1'], ['rows', 'features', 'parameters', 'update_freq'],
                 marks=pytest.mark.exhaustive),
])
def test_benchmarks_write_a_table_and_a_picture(tmp_path, name, arguments, methods):
    subprocess.run([sys.executable, str(EXAMPLES / 'benchmarks' / (name + '.py')),
                    '--output', str(tmp_path), *arguments], check=True, capture_output=True)
    lines = (tmp_path / (name + '.md')).read_text().splitlines()
    table = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines
             if line.startswith('|')]
    assert [row[0] for row in table[2:]] == methods
    assert all(len(row) == len(table[0]) and all(row[2:]) for row in table[2:])
    assert 'python examples/benchmarks/%s.py' % name in lines[-1]
    assert (tmp_path / (name + '.png')).read_bytes().startswith(b'\x89PNG')


def test_benchmark_on_a_libsvm_file(tmp_path):
    """Binary, where each method must come close to the optimum."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(600, 5)).round(3)
    labels = np.where(features[:, 0] + rng.normal(size=600) > 0, 1, -1)
    path = tmp_path / 'rows.libsvm'
    path.write_text(''.join('%d %s\n' % (label, ' '.join(
        '%d:%s' % (i + 1, value) for i, value in enumerate(row)))
        for label, row in zip(labels, features)))
    subprocess.run([sys.executable, str(EXAMPLES / 'benchmarks' / 'time_to_suboptimality.py'),
                    '--data', str(path), '--l2', '0.01', '--rates', '1', '--epochs', '30',
                    '--output', str(tmp_path)], check=True, capture_output=True)
    rows = [line for line in (tmp_path / 'time_to_suboptimality.md').read_text().splitlines()
            if line.startswith(('| SVRG', '| scikit'))]
    assert len(rows) == 4 and not any('not reached' in row for row in rows)


def test_benchmark_of_distributed_training():
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'benchmarks' / 'distributed.py'), '--workers', '2',
         '--rows', '640', '--times', '3'], check=True, capture_output=True, text=True, timeout=120)
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in
            result.stdout.splitlines() if line.startswith('| dist')]
    assert [row[:2] + row[4:5] for row in rows] == [['dist_sync', '2', '0'],
                                                    ['dist_async', '2', '2']]
    for row in rows:
        assert abs(float(row[3]) - 3) < 0.2 and abs(float(row[6]) - 2) < 0.2

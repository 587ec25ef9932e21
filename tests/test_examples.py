"""The examples do what they promise."""

import subprocess
import sys
from pathlib import Path

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

"""The examples do what they promise."""

import bz2
import functools
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split

from processes import LIGHT, printed_by

EXAMPLES = Path(__file__).resolve().parents[2] / 'examples'
SCRIPTS = ['high_level_api', 'intermediate_level_api', 'inference', 'linear_regression',
           'logistic_regression_csr', 'sparse_logistic_regression', 'training_on_a_stream',
           'gluon_trainer', 'gluon_block', 'convolutional_network']


def run(name, *arguments, cwd=None):
    """Run an example; return the lines that it printed, and those of its log."""
    result = subprocess.run([sys.executable, str(EXAMPLES / (name + '.py')), *map(str, arguments)],
                            check=True, capture_output=True, text=True, cwd=cwd)
    return result.stdout.splitlines(), result.stderr.splitlines()


def error_of(name, *arguments, cwd=None):
    """Run an example on bad input; return its message."""
    result = subprocess.run([sys.executable, str(EXAMPLES / (name + '.py')), *map(str, arguments)],
                            check=False, capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 2 and not result.stdout and 'Traceback' not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.process
@pytest.mark.slow
def test_training_on_a_stream_reaches_least_squares():
    printed, log = run('training_on_a_stream', '--rows', 20050, '--epochs', 8)
    assert printed[0].startswith('mean squared error above that of least squares: ')
    assert 0 <= last_number(printed[0]) < 1e-6
    batches = [int(line.split('=')[1]) for line in log if 'Full gradient batches' in line]
    assert batches[:6] == [5, 10, 20, 40, 80, 160]
    assert batches[6:] == [201, 201]


def test_readme_has_all_examples():
    readme = (EXAMPLES / 'README.md').read_text(encoding='utf-8')
    for path in [*EXAMPLES.glob('*.py'), *EXAMPLES.glob('*.ipynb')]:
        assert '| [%s](%s) |' % (path.name, path.name) in readme


def last_number(line):
    return float(re.findall(r'[0-9.]+(?:e[+-][0-9]+)?', line)[-1])


@pytest.mark.process
def test_each_script_shows_its_help():
    printed = printed_by('-c', '''
import contextlib, runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, '--help']
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name='__main__')
    print('its end')''', *(EXAMPLES / (name + '.py') for name in SCRIPTS), paths=[EXAMPLES])
    *texts, rest = printed.split('its end\n')
    assert not rest and len(texts) == len(SCRIPTS)
    for name, text in zip(SCRIPTS, texts):
        assert text.startswith('usage: %s.py' % name)
        assert '--learning-rate' in text


@pytest.mark.process
@pytest.mark.parametrize('name, arguments', [
    ('high_level_api', []), pytest.param('intermediate_level_api', [], marks=pytest.mark.slow),
    pytest.param('intermediate_level_api', ['--store-snapshot-grads'], marks=pytest.mark.slow)])
def test_both_apis_reach_least_squares(name, arguments):
    printed, log = run(name, *arguments)
    weights, least_squares = (np.array(line.split()[-5:], float) for line in printed)
    np.testing.assert_allclose(weights, [1, -2, 3, -4, 5], atol=0.02)
    np.testing.assert_allclose(weights, least_squares, atol=5e-6)
    assert any(line.startswith('Epoch[19] Train-mse=0.0') for line in log)
    if name == 'high_level_api':
        assert sum('Full gradient time' in line for line in log) == 10
        assert any(line.startswith('Epoch[19] Validation-mse=0.0') for line in log)


@pytest.mark.process
@pytest.mark.slow
def test_inference_resumes_to_exactly_the_same_weights(tmp_path):
    prefix = tmp_path / 'checkpoints' / 'digits'
    printed, log = run('inference', '--prefix', prefix, '--epochs', 6, '--resume-from', 3)
    assert printed[0].startswith('accuracy on 360 held-out digits: ')
    assert last_number(printed[0]) > 0.92
    assert printed[-1] == ('resumed from epoch 3: the weights are exactly those of the '
                           'undisturbed training')
    assert sum(line.startswith('Saved checkpoint') for line in log) == 6
    assert all(Path('%s-%04d.svrg' % (prefix, epoch)).exists() for epoch in range(1, 7))


@pytest.mark.process
@pytest.mark.slow
def test_inference_cannot_resume_from_its_end(tmp_path):
    message = error_of('inference', '--prefix', tmp_path / 'digits', '--epochs', 3)
    assert message.endswith('argument --resume-from: must be at least 1 and below --epochs, 3, '
                            'not 5')


def songs(path):
    """Write a small file with the layout of YearPredictionMSD; return the best RMSE."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(1500, 90)) * np.exp(rng.uniform(1, 6, size=90)) + 30
    years = np.round(1998 + features[:, :5] @ (5 / features[:, :5].std(axis=0))
                     + rng.normal(scale=9, size=1500))
    years -= np.round(years.mean()) - 1998
    dump_svmlight_file(features, years, str(path), zero_based=False)
    residuals = years - LinearRegression().fit(features, years).predict(features)
    return np.sqrt(np.mean(residuals ** 2))


@pytest.mark.process
@pytest.mark.slow
def test_linear_regression_reaches_least_squares(tmp_path):
    path = tmp_path / 'songs.svm'
    best = songs(path)
    printed, log = run('linear_regression', '--data', path, '--rows', 1500, '--batch-size', 50,
                       '--epochs', 20)
    of_svrg, of_least_squares = (float(line.split()[-2]) for line in printed)
    assert all(line.startswith('RMSE of ') and line.endswith(' years') for line in printed)
    np.testing.assert_allclose(of_least_squares, best, rtol=1e-4)
    np.testing.assert_allclose(of_svrg, best, rtol=1e-3)
    assert any('Epoch[19] Train-rmse=' in line for line in log)


@pytest.fixture
def server(tmp_path):
    """A server of the files in a folder; it ends those that are named cut* in their middle."""
    folder = tmp_path / 'served'
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def copyfile(self, source, outputfile):
            content = source.read()
            cut = Path(self.path).name.startswith('cut')
            outputfile.write(content[:len(content) // 2] if cut else content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(
            ('127.0.0.1', 0), functools.partial(Handler, directory=str(folder))) as serving:
        threading.Thread(target=serving.serve_forever).start()
        yield folder, 'http://127.0.0.1:%d/' % serving.server_port
        serving.shutdown()


@pytest.mark.process
@pytest.mark.slow
def test_linear_regression_downloads_once(tmp_path, server):
    folder, url = server
    songs(tmp_path / 'songs.svm')
    (folder / 'songs.bz2').write_bytes(bz2.compress((tmp_path / 'songs.svm').read_bytes()))
    arguments = ['linear_regression', '--url', url + 'songs.bz2', '--rows', 1500, '--epochs', 1]
    printed, log = run(*arguments, cwd=tmp_path)
    assert len(printed) == 2 and log[0] == 'downloading %ssongs.bz2' % url
    assert ((tmp_path / 'YearPredictionMSD.bz2').read_bytes()
            == (folder / 'songs.bz2').read_bytes())
    again, log = run(*arguments, cwd=tmp_path)
    assert again == printed and not any('downloading' in line for line in log)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name, says', [
    ('cut.bz2', 'retrieval incomplete: got only 500 out of 1000 bytes'),
    ('none.bz2', 'HTTP Error 404: File not found')])
def test_linear_regression_keeps_no_failed_download(tmp_path, server, name, says):
    folder, url = server
    (folder / 'cut.bz2').write_bytes(b'0' * 1000)
    message = error_of('linear_regression', '--url', url + name, cwd=tmp_path)
    assert 'argument --url: %s%s: ' % (url, name) in message and says in message
    assert [path.name for path in tmp_path.iterdir()] == ['served']


@pytest.mark.process
@pytest.mark.slow
def test_linear_regression_refuses_a_wrong_file(tmp_path):
    path = tmp_path / 'songs.svm'
    songs(path)
    assert error_of('linear_regression', '--data', path).endswith(
        'argument --data: %s: it has 1500 rows, and --rows says 463715' % path)
    compressed = tmp_path / 'songs.bz2'
    compressed.write_bytes(bz2.compress(path.read_bytes())[:-100])
    assert 'argument --data: %s: Compressed file ended before' % compressed in error_of(
        'linear_regression', '--data', compressed)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name', ['linear_regression', 'logistic_regression_csr',
                                  'sparse_logistic_regression'])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    assert 'argument --data: %s: [Errno 2] No such file' % (tmp_path / 'none') in error_of(
        name, '--data', tmp_path / 'none')


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('content, says', [
    ('1 1:0.5\n2 2:0.5\n3 1:1\n', 'it must have two different labels, and has 3'),
    ('this is no LIBSVM file\n', 'could not convert string to float')])
def test_logistic_regression_refuses_a_wrong_file(tmp_path, content, says):
    path = tmp_path / 'rows.svm'
    path.write_text(content)
    message = error_of('logistic_regression_csr', '--data', path)
    assert 'argument --data: %s: ' % path in message and says in message


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('arguments', [[], ['--sparse-full-grad']])
def test_logistic_regression_is_accurate_on_generated_rows(arguments):
    printed, log = run('logistic_regression_csr', *arguments)
    assert printed[-1].startswith('accuracy on 2000 held-out rows: ')
    assert 0.87 < last_number(printed[-1]) < 0.9
    assert any('Epoch[9] Validation-accuracy=' in line for line in log)


@pytest.mark.process
@pytest.mark.slow
def test_logistic_regression_on_a_file_is_as_accurate_as_scikit_learn(tmp_path):
    """With features counted from 1, labels -1 and 1, and a last batch that is not full."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(1037, 30)) * (rng.uniform(size=(1037, 30)) < 0.2)
    labels = np.where(features @ rng.normal(size=30, scale=2) + rng.logistic(size=1037) > 0, 1, -1)
    path = tmp_path / 'rows.svm'
    dump_svmlight_file(features, labels, str(path), zero_based=False)
    printed, _ = run('logistic_regression_csr', '--data', path, '--epochs', 20)
    train_x, test_x, train_y, test_y = train_test_split(features, labels, test_size=0.2,
                                                        random_state=0)
    best = LogisticRegression(C=1 / (1e-4 * len(train_y))).fit(train_x, train_y)
    assert printed[-1].startswith('accuracy on 208 held-out rows: ')
    assert abs(last_number(printed[-1]) - best.score(test_x, test_y)) < 0.015


@pytest.mark.process
@pytest.mark.slow
def test_sparse_logistic_regression_finds_zeros_on_generated_rows():
    printed, _ = run('sparse_logistic_regression')
    assert printed[0] == 'weights that are exactly zero: 167 of 200'
    assert 0.66 < last_number(printed[1]) < 0.68


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*penalty.*:FutureWarning')
def test_sparse_logistic_regression_on_a_file_has_the_zeros_of_scikit_learn(tmp_path):
    """As many weights are zero as in scikit-learn's solution."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(1000, 30)) * (rng.uniform(size=(1000, 30)) < 0.2)
    features[:, -1] = features[:, -1] != 0  # such that the file has all columns
    scores = features[:, :6] @ rng.normal(size=6, scale=3)
    labels = np.where(scores + rng.logistic(size=1000) > 0, 1, -1)
    path = tmp_path / 'rows.svm'
    dump_svmlight_file(features, labels, str(path), zero_based=False)
    printed, _ = run('sparse_logistic_regression', '--data', path, '--epochs', 60, '--l1', 0.01)
    train_x, _, train_y, _ = train_test_split(features, labels, test_size=0.2, random_state=0)
    best = LogisticRegression(penalty='elasticnet', l1_ratio=1, C=1 / (0.01 * 800), solver='saga',
                              tol=1e-10, max_iter=100000).fit(train_x, train_y)
    zeros = (best.coef_ == 0).sum()
    assert 10 < zeros < 28
    assert printed[0] == 'weights that are exactly zero: %d of 30' % zeros


@pytest.mark.process
@pytest.mark.slow
def test_gluon_block_predicts_as_its_module():
    printed, _ = run('gluon_block', '--epochs', 10)
    assert last_number(printed[0]) > 0.93
    assert last_number(printed[1]) < 1e-6


@pytest.mark.process
@pytest.mark.slow
def test_gluon_trainer_shows_that_svrg_beats_sgd():
    printed, _ = run('gluon_trainer')
    assert [line.split()[0] for line in printed] == ['Trainer:', 'SVRGTrainer:']
    of_sgd, of_svrg = (float(line.split()[2].rstrip(',')) for line in printed)
    assert of_svrg < 0.96 * of_sgd
    assert last_number(printed[1]) > 0.95


@pytest.mark.process
@pytest.mark.slow
def test_convolutional_network_learns_the_digits():
    printed, log = run('convolutional_network')
    assert printed[-1].startswith('accuracy on 360 held-out digits: ')
    assert last_number(printed[-1]) > 0.96
    assert sum('Full gradient time' in line for line in log) == 10


@pytest.mark.process
@pytest.mark.slow
def test_the_notebook_says_what_its_committed_outputs_say(tmp_path, monkeypatch):
    """Runs from top to bottom, and says what its committed outputs say."""
    monkeypatch.setenv('JUPYTER_RUNTIME_DIR', str(tmp_path))
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path))
    notebook = nbformat.read(EXAMPLES / 'svrg_vs_sgd.ipynb', as_version=4)
    committed = notebook_outputs(notebook)
    for cell in notebook.cells:  # fewer curves, none of which decides what is asserted
        cell.source = cell.source.replace('PASSES = 90\n', 'PASSES = 20\n').replace(
            'RATES = (0.1, 0.3, 1, 4, 8, 16)', 'RATES = (0.3, 1, 4)')
    executed = nbclient.NotebookClient(notebook, timeout=300, record_timing=False,
                                       resources={'metadata': {'path': str(tmp_path)}}).execute()
    pictures, text = notebook_outputs(executed)
    assert pictures == committed[0] == 4
    assert text[0] == committed[1][0] == '1797 images of 64 pixels, smallest loss 0.873551\n'
    for line in (text[1], committed[1][1]):
        assert line.startswith('at epoch 36 the noise of SVRG is ')
        assert float(line.split()[8]) < 1e-10


def notebook_outputs(notebook):
    """Return the number of pictures, and all that is printed."""
    outputs = [output for cell in notebook.cells for output in cell.get('outputs', [])]
    pictures = sum('image/png' in output.get('data', {}) for output in outputs)
    return pictures, [output.text for output in outputs if output.get('name') == 'stdout']


@pytest.mark.process
def test_svrg_beats_sgd_on_digits(tmp_path):
    picture = tmp_path / 'picture.png'
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'svrg_vs_sgd.py'), '--rates', '0.3', '4',
         '--passes', '45', '--output', str(picture)], check=True, capture_output=True, text=True)
    table = [line for line in result.stdout.splitlines() if line.endswith(' s')][-3:]
    assert [line.split('  ')[0] for line in table] == [
        'SVRG, BarzilaiBorwein', 'SGD, decaying rate', 'SGD, constant rate']
    epochs, passes, excess = zip(*([float(number) for number in line.split()[-5:-2]]
                                   for line in table))
    assert epochs == (17, 45, 45) and passes == (43, 45, 45)
    assert excess[0] < 1e-5 and excess[0] * 50 < excess[2]
    assert picture.read_bytes().startswith(b'\x89PNG')


@pytest.mark.process
def test_the_demo_draws_a_training_that_ends_at_the_floor(tmp_path):
    picture = tmp_path / 'picture.png'
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'svrg_vs_sgd.py'), '--rates', '0.3', '--passes', '150',
         '--output', str(picture)], check=True, capture_output=True, text=True)
    found = [line for line in result.stdout.splitlines() if line.startswith('SVRG')]
    epochs, passes, excess = (float(number) for number in found[0].split()[-5:-2])
    assert epochs < 58 and passes < 150 and excess < 1e-10
    assert picture.read_bytes().startswith(b'\x89PNG')


@pytest.mark.process
@pytest.mark.slow
def test_the_benchmark_of_sparse_rows_prints_its_tables(tmp_path):
    data = tmp_path / 'rows.svm'
    rng = np.random.RandomState(0)
    features = rng.normal(size=(900, 30)) * (rng.uniform(size=(900, 30)) < 0.2)
    dump_svmlight_file(features, np.sign(features.sum(1) + rng.normal(size=900)), str(data))
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'benchmarks' / 'sparse_rows.py'), '--columns', '1000',
         '2000', '--rounds', '1', '--batches', '3', '--data', str(data), '--output',
         str(tmp_path)], check=True, capture_output=True, text=True)
    written = (tmp_path / 'sparse_rows.md').read_text(encoding='utf-8')
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in written.splitlines()
            if line.startswith('| ')]
    assert [row[0] for row in rows[:6]] == ['rows of the table', '1,000', '2,000', 'batches of',
                                            '100', '400']
    assert all(float(cell) > 0 for row in (*rows[1:3], *rows[4:6]) for cell in row[1:])
    assert len(rows) == 6 + 1 + 9 and all(cell.endswith(' s') for row in rows[7:]
                                          for cell in row[1:])
    assert all(line in result.stdout for line in written.splitlines())


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize('name, arguments, methods', [
    ('epoch_cost', ['--models', 'linear, 90 features', '--rounds', '1'],
     ['linear, 90 features']),
    pytest.param('time_to_suboptimality', ['--rows', '512', '--epochs', '2', '--rates', '1'],
                 ['SVRG, stored', 'SVRG', 'SVRG, stored, momentum',
                  'SVRG, stored, BarzilaiBorwein', 'SVRG, BarzilaiBorwein',
                  'SVRG, stored, BarzilaiBorwein and momentum', 'contrib SVRG',
                  'Module, constant rate', 'Module, decaying rate', 'scikit-learn, SAGA',
                  'scikit-learn, L-BFGS'], marks=pytest.mark.exhaustive),
    ('memory', [], ['LeNet'] * 3 + ['MLP 784-512-256-10'] * 3),
    ('deep_network', ['--seeds', '1', '--epochs', '2', '--rates', '0.2'],
     ['SGD', 'SVRG', 'α-SVRG, α = 0.5', 'α-SVRG, α from 0.75 to 0']),
    ('gluon_cost', ['--rounds', '1'], ['MLP 784-512-256-10', 'LeNet']),
])
def test_benchmarks_write_a_table_and_a_picture(tmp_path, name, arguments, methods):
    table = table_of(tmp_path, name, arguments)
    assert [row[0] for row in table] == methods
    assert (tmp_path / (name + '.png')).read_bytes().startswith(b'\x89PNG')


def table_of(tmp_path, name, arguments):
    """Run a benchmark; return the rows of the table that it writes."""
    subprocess.run([sys.executable, str(EXAMPLES / 'benchmarks' / (name + '.py')),
                    '--output', str(tmp_path), *arguments], check=True, capture_output=True)
    lines = (tmp_path / (name + '.md')).read_text(encoding='utf-8').splitlines()
    table = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines
             if line.startswith('|')]
    assert all(len(row) == len(table[0]) and all(row[2:]) for row in table[2:])
    assert 'python examples/benchmarks/%s.py' % name in lines[-1]
    return table[2:]


@pytest.mark.process
@pytest.mark.slow
def test_benchmark_at_mnists_size(tmp_path):
    methods = ['SVRG', 'SVRG, stored', 'SVRG, momentum', 'scikit-learn, SAGA',
               'scikit-learn, L-BFGS']
    table = table_of(tmp_path, 'mnist_size', [
        '--rows', '1024', '2048', '--batch-size', '64', '--rounds', '2', '--epochs', '30',
        '--seconds', '5', '--l2', '0.1', '--rate', '1', '--momentum-rate', '0.2', '--methods',
        *methods])
    assert [row[:2] for row in table] == [[name, rows] for rows in ('1024', '2048')
                                          for name in [*methods, 'NumPy, an epoch']]
    for row in table:
        if row[0].startswith('SVRG'):
            assert 'epochs' in row[2] and float(row[-1]) > 0


@pytest.mark.process
@pytest.mark.slow
def test_benchmark_of_the_automatic_rate(tmp_path):
    """It asserts that fit ends by itself, at the optimum; here that it takes few passes."""
    subprocess.run([sys.executable, str(EXAMPLES / 'benchmarks' / 'automatic_rate.py'),
                    '--problems', 'logistic, unit rows', '--rounds', '1', '--output',
                    str(tmp_path)], check=True, capture_output=True)
    table = (tmp_path / 'automatic_rate.md').read_text(encoding='utf-8')
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()
            if line.startswith('| logistic')]
    assert [row[3] for row in rows] == ['0.0001', '1e-05']
    for row in rows:
        assert float(row[4]) <= 1.01 * float(row[3])
        assert int(row[6]) <= 3 * int(row[7]) < 150
    assert float(rows[1][5]) <= 1e-6


@pytest.mark.process
@pytest.mark.slow
def test_benchmark_of_the_tolerance(tmp_path):
    """A tol ten times as small brings the objective closer to scikit-learn's, on each data."""
    table = table_of(tmp_path, 'tolerance', [])
    assert [row[0] for row in table] == ['1e-03', '1e-04', '1e-05', '1e-06']
    for bound, row in zip((1e-2, 5e-4, 2e-5, 2e-7), table):
        assert all(float(cell.split(',')[0]) <= bound for cell in row[1:])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec('torch'),
                    reason='needs torch, of which no other test makes use')
def test_benchmark_beside_pytorch(tmp_path):
    """The weights of both sides must agree, or it fails."""
    models = ['softmax 784-10', 'MLP 784-512-256-10', 'LeNet']
    table = table_of(tmp_path, 'beside_pytorch',
                     ['--batches', '4', '--rounds', '1', '--threads', '1'])
    assert [row[:2] for row in table] == [[model, kind] for model in models
                                          for kind in ('plain', 'stored')]
    assert all(float(cell) > 0 for row in table for cell in row[2:])


@pytest.mark.process
@pytest.mark.slow
def test_the_benchmark_on_a_libsvm_file_reaches_the_optimum(tmp_path):
    """Binary, where each method must come close to the optimum."""
    rng = np.random.RandomState(0)
    features = rng.normal(size=(600, 5)).round(3)
    labels = np.where(features[:, 0] + rng.normal(size=600) > 0, 1, -1)
    path = tmp_path / 'rows.libsvm'
    path.write_text(''.join('%d %s\n' % (label, ' '.join(
        '%d:%s' % (i + 1, value) for i, value in enumerate(row)))
        for label, row in zip(labels, features)))
    subprocess.run([sys.executable, str(EXAMPLES / 'benchmarks' / 'time_to_suboptimality.py'),
                    '--data', str(path), '--l2', '0.01', '--rates', '0.5', '--epochs', '60',
                    '--rounds', '1', '--output', str(tmp_path)], check=True, capture_output=True)
    table = (tmp_path / 'time_to_suboptimality.md').read_text(encoding='utf-8')
    rows = [line for line in table.splitlines()
            if line.startswith(('| SVRG', '| scikit'))]
    assert len(rows) == 8 and not any('not reached' in row for row in rows)


@pytest.mark.cluster
@pytest.mark.slow
def test_the_benchmark_of_distributed_training_prints_a_row_for_each_kind():
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / 'benchmarks' / 'distributed.py'), '--workers', '2',
         '--rows', '640', '--times', '7', '--hidden', '32'], check=True, capture_output=True,
        text=True, timeout=120, env={**os.environ, 'PYTHONPATH': LIGHT})
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in
            result.stdout.splitlines() if line.startswith('| dist')]
    assert [row[:3] + row[5:6] for row in rows] == [['dist_sync', '2', '1', '0'],
                                                    ['dist_async', '2', '1', '2']]
    for row in rows:
        assert abs(float(row[4]) - 3) < 0.2 and abs(float(row[7]) - 2) < 0.2

"""Pythons and machines that are newer or barer than those that MXNet was made for."""

import os
import subprocess

import pytest

from processes import ROOT, run_python

SCRIPT = '''
import multiprocessing
multiprocessing.get_all_start_methods = lambda: ['forkserver', 'fork']  # as on Python 3.14
multiprocessing.set_start_method('forkserver')
import mxnet as mx
rows = mx.gluon.data.SimpleDataset([mx.nd.ones((2,)) * number for number in range(4)])
loader = mx.gluon.data.DataLoader(rows.transform(lambda row: row + 1), 2, num_workers=2)
print([batch.asnumpy().tolist() for batch in loader])
print(multiprocessing.get_start_method())
'''


@pytest.mark.process
def test_data_loader_without_main_guard_takes_ndarrays_and_lambdas(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    result = run_python(script)
    assert (result.returncode, result.stderr) == (0, '')
    assert result.stdout == '[[[1.0, 1.0], [2.0, 2.0]], [[3.0, 3.0], [4.0, 4.0]]]\nforkserver\n'


def make(python, *options):
    """Run ``make demo`` with a Python; nothing that was said to a make around the tests counts."""
    python.chmod(0o755)
    return subprocess.run(
        ['make', *options, 'demo', 'PYTHON=%s' % python], cwd=ROOT, text=True,
        capture_output=True, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith('MAKE')})


@pytest.mark.process
@pytest.mark.parametrize('version, expected', [
    ('3.13', ''), ('3.15', ''), ('3.99', 'Python 3.99 is newer than those that were tried'),
    ('3.7', 'is Python 3.7, and this package needs Python 3.8 or later'),
    ('2.7', 'is Python 2.7, and this package needs Python 3.8 or later'),
    ('', 'This package needs Python 3.8 or later')])
def test_make_notes_newer_pythons_and_refuses_only_older_ones(tmp_path, version, expected):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho %s\n' % version)
    shown = make(python, '-n').stdout  # what would run
    refused = version in ('3.7', '2.7', '')
    assert ('exit 1' in shown) == refused
    assert expected in shown
    assert refused or ('newer than' in shown) == bool(expected)
    assert refused or ('--no-deps' in shown)


@pytest.mark.process
@pytest.mark.parametrize('fails, packages', [
    ('ensurepip', 'python3.97-venv'), ('libgomp', 'libgomp1'), ('libquadmath', 'libquadmath0'),
    ('import', 'python3.97-venv libgomp1 libquadmath0')])
def test_make_names_what_the_system_lacks_before_it_installs_anything(tmp_path, fails, packages):
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\ncase "$*" in *version_info*) echo 3.97; exit;; *%s*) exit 1;; '
                      '*CDLL* | *ensurepip*) exit;; esac\ntouch %s/installs\n' % (fails, tmp_path))
    made = make(python)
    assert made.returncode == 2 and 'Installing' not in made.stdout
    assert '    apt-get install --yes %s\n' % packages in made.stderr
    assert not (tmp_path / 'installs').exists()
    assert not (ROOT / '.venv' / '3.97').exists()

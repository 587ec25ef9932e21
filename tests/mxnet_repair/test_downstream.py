"""Packages of the table of docs/what-runs-where.md that are installed import, and say which."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'what-runs-where.md'
MODULES = {'d2l': 'd2l.mxnet', 'dgl': 'dgl.nn.mxnet', 'gluonts': 'gluonts.mx',
           'keras-mxnet': 'keras', 'xfer-ml': 'xfer'}
ROWS = re.findall(r'^\| ([\w-]+) \| ([\d.]+) \|', PAGE.read_text(encoding='utf-8'), re.MULTILINE)


def test_the_page_has_packages():
    assert len(ROWS) == 9 and set(MODULES) <= {name for name, _ in ROWS}


@pytest.mark.process
@pytest.mark.parametrize('name, version', ROWS)
def test_a_package_of_the_page_imports(name, version):
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        pytest.skip('needs %s==%s' % (name, version))
    if not (installed + '.').startswith(version + '.'):
        pytest.skip('needs %s==%s, not %s' % (name, version, installed))
    subprocess.run([sys.executable, '-c', 'import mxnet, %s' % MODULES.get(name, name)], check=True,
                   capture_output=True)

"""What setup.py says of the package and builds, with and without the repository's URL."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from svrg_optimization import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def metadata(tmp_path, monkeypatch):
    """Return a function that returns what setup.py gives setuptools, with this address."""
    def of(url=''):
        (tmp_path / 'README.md').write_bytes((ROOT / 'README.md').read_bytes())
        text, count = re.subn("(?m)^URL = ''", 'URL = %r' % url,
                              (ROOT / 'setup.py').read_text(encoding='utf-8'))
        assert count == 1
        (tmp_path / 'setup.py').write_text(text, encoding='utf-8')
        (tmp_path / 'svrg_optimization').mkdir(exist_ok=True)
        (tmp_path / 'svrg_optimization' / '__init__.py').write_text("__version__ = '1.2.3'\n")
        given = {}
        for name, module in {
                'setuptools': SimpleNamespace(find_packages=lambda **_: [], setup=given.update),
                'setuptools.command': SimpleNamespace(),
                'setuptools.command.build_py': SimpleNamespace(build_py=FakeBuild)}.items():
            monkeypatch.setitem(sys.modules, name, module)
        runpy.run_path(str(tmp_path / 'setup.py'))
        return given
    return of


class FakeBuild:
    """A build_py of setuptools that copies nothing."""

    editable_mode = False

    def run(self):
        pass


def test_a_wheel_has_nothing_of_an_earlier_build_and_starts_in_silence(metadata, tmp_path):
    start = tmp_path / 'svrg_optimization' / 'mxnet_repair' / 'finder.py'
    stale = tmp_path / 'lib' / 'svrg_optimization' / 'of_an_older_version.py'
    build = metadata()['cmdclass']['build_py']()
    for file in (start, stale):
        file.parent.mkdir(parents=True)
        file.write_text('def install():\n    print("installed")\n')
    build.build_lib = str(tmp_path / 'lib')
    build.run()
    assert not stale.exists()
    for printed in ('installed\n', ''):  # and nothing where somebody has removed it
        result = subprocess.run(
            [sys.executable, '-S', '-c', 'import site, sys; site.addsitedir(sys.argv[1])',
             str(tmp_path / 'lib')], capture_output=True, text=True, check=True)
        assert result.stdout == printed
        # What Python 3.15 says of a .start file is not ours.
        assert not result.stderr or sys.version_info >= (3, 15) and not printed
        (tmp_path / 'lib' / 'svrg_optimization_start.py').unlink(missing_ok=True)


def links_of(text):
    return re.findall(r'\]\(([^()\s]+)\)', text)


def test_urls_and_the_links_of_pypis_page_come_from_the_url(metadata):
    given = metadata()
    assert given['url'] is None and given['project_urls'] == {}
    assert 'docs/images/svrg_vs_sgd.png' in links_of(given['long_description'])
    given = metadata('https://host.org/team/svrg')
    assert given['version'] == '1.2.3' and given['url'] == 'https://host.org/team/svrg'
    links = links_of(given['long_description'])
    assert 'https://host.org/team/svrg/raw/HEAD/docs/images/svrg_vs_sgd.png' in links
    files = [urlsplit(link).path.split('/HEAD/')[1] for link in [
        *links, *given['project_urls'].values()]]
    assert len(files) > 10 and all((ROOT / file).is_file() for file in files)


def test_the_changelog_and_the_citation_have_the_version():
    for name, pattern in (('CHANGELOG.md', r'^## (\S+)'),
                          ('CITATION.cff', r'^version: (.+)$')):
        text = (ROOT / name).read_text(encoding='utf-8')
        assert re.search(pattern, text, re.MULTILINE).group(1) == __version__, name


@pytest.mark.process
def test_pytest_runs_without_its_plugins_and_the_packages_of_some_tests(tmp_path):
    for name in ('psutil', 'sklearn'):
        (tmp_path / (name + '.py')).write_text(
            'raise ModuleNotFoundError("No module named %r")' % name)
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:xdist', '-p', 'no:timeout', '-k',
         'decay_ends or comes_to_the_optimum_of_scikit', 'tests/core/test_alpha.py',
         'tests/documentation/test_readme.py', 'tests/promises/test_soak.py'],
        cwd=str(ROOT), env={**os.environ, 'PYTHONPATH': '%s:%s' % (tmp_path, ROOT)},
        capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert 'Skipped on this machine: 1 (needs psutil); 1 (needs sklearn)' in result.stdout

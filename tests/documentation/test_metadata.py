"""What setup.py builds; the version."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pages import ROOT, text_of
from svrg_optimization import __version__


class FakeBuild:
    """A build_py of setuptools that copies nothing."""

    editable_mode = False

    def run(self):
        pass


def test_a_wheel_has_nothing_of_an_earlier_build_and_starts_in_silence(tmp_path, monkeypatch):
    given = {}
    for name, module in {
            'setuptools': SimpleNamespace(find_packages=lambda **_: [], setup=given.update),
            'setuptools.command': SimpleNamespace(),
            'setuptools.command.build_py': SimpleNamespace(build_py=FakeBuild)}.items():
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(ROOT / 'setup.py'))
    stale = tmp_path / 'svrg_optimization' / 'of_an_older_version.py'
    stale.parent.mkdir()
    stale.touch()
    build = given['cmdclass']['build_py']()
    build.build_lib = str(tmp_path)
    build.run()
    assert not stale.exists()
    start = Path(tmp_path, 'svrg_optimization_start.py')
    start.write_text(start.read_text() + "\nprint('has begun')\n")
    for printed in ('has begun\n', ''):  # and nothing where somebody has removed it
        result = subprocess.run(
            [sys.executable, '-S', '-c', 'import site, sys; site.addsitedir(sys.argv[1])',
             str(tmp_path)], capture_output=True, text=True, check=True)
        assert result.stdout == printed
        # What Python 3.15 says of a .start file is not ours.
        assert not result.stderr or sys.version_info >= (3, 15) and not printed
        start.unlink(missing_ok=True)


@pytest.mark.parametrize('name, pattern', [
    ('CHANGELOG.md', r'^## (\S+)'), ('CITATION.cff', r'^version: (.+)$')])
def test_the_changelog_and_the_citation_have_the_version(name, pattern):
    assert re.search(pattern, text_of(ROOT / name), re.MULTILINE)[1] == __version__

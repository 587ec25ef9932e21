"""The tests over versions of Python and MXNet, and of the package as it is installed.

    nox                               all of it
    nox -s versions -p 3.8 -- FILES   one Python, and arguments of pytest
    nox -s installed                  the wheel and the sdist
    nox -s editable                   the installations that follow the source tree
"""

import shutil
import tarfile
import tempfile
from pathlib import Path

import nox

nox.options.error_on_missing_interpreters = False
nox.options.download_python = 'never'
nox.options.default_venv_backend = 'venv'  # that of each Python: virtualenv has left 3.8 behind
# MXNet 1.9.1 imports by itself with NumPy below 1.24 on Python below 3.12. From 3.12 on
# the NumPys are the oldest that there is, and the newest.
NUMPYS = {'3.8': ['<1.24', ''], '3.9': ['<1.24', ''], '3.10': ['<1.24', ''],
          '3.11': ['<1.24', '', '>=2'], '3.12': ['==1.26.0', '==1.26.4', '>=2'],
          '3.13': ['==2.1.0', '>=2'], '3.14': ['>=2'], '3.15': ['>=2']}
VERSIONS = [(python, '1.9.1', numpy) for python, numpys in NUMPYS.items() for numpy in numpys]
VERSIONS += [('3.8', '1.8.0.post0', '<1.24'), ('3.8', '1.8.0.post0', ''),
             ('3.12', '1.8.0.post0', '==1.26.4')]
NEEDED_BY_MXNET = ['requests<3', 'graphviz<0.9']
QUIET = {'MXNET_SUBGRAPH_VERBOSE': '0', 'PYTHONPATH': None}
NEEDED_BY_TESTS = ['tests', 'docs', 'examples', 'README.md', 'CHANGELOG.md', 'CONTRIBUTING.md',
                   'LICENSE', 'CITATION.cff', 'SECURITY.md', 'Makefile', 'constraints.txt',
                   'pyproject.toml', 'setup.py']


@nox.session
@nox.parametrize('python,mxnet,numpy', VERSIONS)
def versions(session, mxnet, numpy):
    """Test the source tree with one Python, one MXNet and one NumPy."""
    is_forbidden = session.python in ('3.11', '3.12') and numpy == '>=2'  # by MXNet's metadata
    session.install('-e', '.[test]', *NEEDED_BY_MXNET,
                    *([] if is_forbidden else ['numpy' + numpy]))
    session.install('--no-deps', 'mxnet==' + mxnet)
    if is_forbidden:
        session.install('numpy' + numpy)
    session.run('python', '-m', 'pytest', *session.posargs, env=QUIET)


@nox.session(python=['3.11', '3.12', '3.13', '3.15'])
@nox.parametrize('kind', ['wheel', 'sdist'])
def installed(session, kind):
    """Build the package, install it outside of the source tree, and test what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        session.install('build', 'twine')
        session.run('python', '-m', 'build', '--' + kind, '--outdir', str(folder / 'dist'))
        built, = (folder / 'dist').iterdir()
        session.run('python', '-m', 'twine', 'check', '--strict', str(built))
        source = Path.cwd()
        if kind == 'sdist':  # it has all that its tests need
            with tarfile.open(built) as archive:
                archive.extractall(folder / 'sdist')
            source, = (folder / 'sdist').iterdir()
        (folder / 'tests').mkdir()
        for name in NEEDED_BY_TESTS:
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(str(source / name), str(folder / 'tests' / name))
        session.run('python', '-m', 'venv', str(folder / 'venv'))
        python = str(folder / 'venv' / 'bin' / 'python')
        session.chdir(folder / 'tests')
        pip = [python, '-m', 'pip', '--quiet']
        session.run(*pip, 'install', '%s[test]' % built, *NEEDED_BY_MXNET, external=True,
                    env=QUIET)
        session.run(*pip, 'install', '--no-deps', 'mxnet<2', external=True, env=QUIET)
        session.run(python, '-c', 'import svrg_optimization as package; '
                    'assert "site-packages" in package.__file__', external=True, env=QUIET)
        session.run(python, '-m', 'pytest', *(session.posargs or ['tests']), external=True,
                    env=QUIET)
        session.run(*pip, 'uninstall', '--yes', 'svrg-optimization', external=True, env=QUIET)
        assert_nothing_is_left(session, python)


@nox.session(python=['3.8', '3.12', '3.13', '3.15'])
@nox.parametrize('mode', ['lenient', 'strict', 'compat'])
def editable(session, mode):
    """Install the source tree, import MXNet before the package, and uninstall it."""
    session.install('-e', '.', *NEEDED_BY_MXNET, '--config-settings', 'editable_mode=' + mode)
    session.install('--no-deps', 'mxnet<2')
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        Path('svrg_optimization').mkdir()  # as a clone is named
        session.run('python', '-c', 'import mxnet; from svrg_optimization import SVRGModule',
                    env=QUIET)
    session.run('python', '-m', 'pip', 'uninstall', '--yes', 'svrg-optimization')
    assert_nothing_is_left(session, 'python')


def assert_nothing_is_left(session, python):
    """Check that Python starts, without the package and without a word."""
    session.run(python, '-W', 'error', '-c', 'import pathlib, sys, sysconfig; '
                'folder = pathlib.Path(sysconfig.get_path("purelib")); '
                'assert not list(folder.glob("*svrg*")); '
                'assert not any("svrg" in str(finder) for finder in sys.meta_path)',
                external=True, env=QUIET)

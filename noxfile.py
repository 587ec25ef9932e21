"""The tests over versions of Python and MXNet, and of the package as it is installed.

    nox                           all of it
    nox -s versions-3.8 -- FILES  one Python, and arguments of pytest
    nox -s installed              the wheel and the sdist
"""

import shutil
import tarfile
import tempfile
from pathlib import Path

import nox

nox.options.error_on_missing_interpreters = False
nox.options.download_python = 'never'
nox.options.default_venv_backend = 'venv'  # that of each Python: virtualenv has left 3.8 behind
PYTHONS = ['3.8', '3.9', '3.10', '3.11']
MXNETS = ['1.8.0.post0', '1.9.1']
QUIET = {'MXNET_SUBGRAPH_VERBOSE': '0', 'PYTHONPATH': None}
NEEDED_BY_TESTS = ['tests', 'docs', 'examples', 'README.md', 'LICENSE', 'Makefile',
                   'pyproject.toml']


@nox.session(python=PYTHONS)
@nox.parametrize('mxnet', MXNETS)
def versions(session, mxnet):
    """Test the source tree with one Python and one MXNet."""
    session.install('-e', '.[test]', 'mxnet==' + mxnet)
    session.run('python', '-m', 'pytest', *session.posargs, env=QUIET)


@nox.session(python=PYTHONS[-1])
@nox.parametrize('kind', ['wheel', 'sdist'])
def installed(session, kind):
    """Build the package, install it outside of the source tree, and test what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        session.install('build')
        session.run('python', '-m', 'build', '--' + kind, '--outdir', str(folder / 'dist'))
        built, = (folder / 'dist').iterdir()
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
        session.run(python, '-m', 'pip', 'install', '--quiet', '%s[test]' % built, external=True,
                    env=QUIET)
        session.run(python, '-c', 'import svrg_optimization as package; '
                    'assert "site-packages" in package.__file__', external=True, env=QUIET)
        session.run(python, '-m', 'pytest', *(session.posargs or ['tests']), external=True,
                    env=QUIET)

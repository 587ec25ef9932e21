"""Pythons in processes of their own, which can import the helpers of the tests."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent
# Without SciPy and scikit-learn MXNet imports in half the time.
LIGHT = str(SUPPORT / 'light')


def run_python(*arguments, python=sys.executable, paths=(LIGHT,), **environment):
    """Run Python with arguments; return its exit status and what it wrote."""
    path = [*map(str, paths), str(SUPPORT), str(ROOT), os.environ.get('PYTHONPATH', '')]
    return subprocess.run(
        [python, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=3600,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, path)), **environment})


def printed_by(*arguments, **given):
    """Run Python with arguments, which must succeed; return what it printed."""
    result = run_python(*arguments, **given)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def in_a_process(function, *arguments):
    """Run a function of a test's file in a Python of its own, with strings for arguments."""
    file = Path(function.__code__.co_filename)
    result = run_python(
        '-c', 'import sys, importlib; module, name, *arguments = sys.argv[1:]; '
        'getattr(importlib.import_module(module), name)(*arguments)',
        file.stem, function.__name__, *arguments, paths=[LIGHT, file.parent])
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr

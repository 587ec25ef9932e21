"""Hooks for all tests."""

import contextlib

import mxnet as mx
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    """Wait for MXNet's threads before pytest writes the environment for the next phase.

    They read it (oneDNN does), and getenv beside setenv in another thread can crash.
    """
    yield
    with contextlib.suppress(mx.MXNetError):  # of what failed on purpose
        mx.nd.waitall()

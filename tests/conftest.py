"""Hooks and fixtures for all tests."""

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


@pytest.fixture
def reshaped(monkeypatch):
    """List the number of rows that each executor is reshaped for."""
    rows, reshape = [], mx.executor.Executor.reshape
    monkeypatch.setattr(mx.executor.Executor, 'reshape', lambda executor, **kwargs: (
        rows.append(kwargs['data'][0]), reshape(executor, **kwargs))[1])
    return rows

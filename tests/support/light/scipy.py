"""No SciPy: MXNet imports it where it can, which takes each process of a cluster long."""

raise ImportError('left out by tests/support/processes.py')

"""Start of a distributed job on this machine, and the role of a process that others start.

Both need Python's standard library alone, until a process of the job imports MXNet.
"""

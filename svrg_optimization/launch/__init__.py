"""Start of a distributed job on this machine, and the role of a process that others start.

This folder uses Python's standard library alone, before a script runs.
"""

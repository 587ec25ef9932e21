"""Start of a distributed job on this machine, and the role of a process that another program starts.

This folder uses Python's standard library alone, before a script runs.
"""

"""Start of a distributed job on this machine, and the role of a process that others start.

The launcher uses Python's standard library alone; the role imports the package, as its servers
do.
"""

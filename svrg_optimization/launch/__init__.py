"""Start of a distributed job on this machine or on several hosts.

This folder uses Python's standard library alone, and nothing of the package or of MXNet.
"""

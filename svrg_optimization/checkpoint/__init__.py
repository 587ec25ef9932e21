"""Checkpoints of both front ends: one file without pickles, which is written whole or not at all.

`files.py` reads and writes it, `of_module.py` says what it has of a Module, `gluon/states.py`
what it has of a trainer, and `SVRG.state` what both have.
"""

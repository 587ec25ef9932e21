from .mxnet_repair.loader import find_spec  # noqa: F401 (environments installed before this file moved)

"""Warnings that appear once."""

import warnings


class WarnOnce:
    """Function that warns of each message, or of each kind of message, only once."""

    def __init__(self):
        self._warned = set()

    def __call__(self, message, kind=None):
        """Warn of a message, unless it or another of its kind has been warned of."""
        if (kind or message) not in self._warned:
            self._warned.add(kind or message)
            warnings.warn(message, stacklevel=2)

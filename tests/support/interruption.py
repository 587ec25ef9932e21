"""A Ctrl-C before a given operation of a call."""

import sys

from mxnet import autograd


class Interruption:
    """Call something, and interrupt it before a given operation of MXNet's Python or of ours.

    A signal is heard of between two operations. With `at` None they are counted alone. From
    Python 3.12 on, whose first releases are not sound when each operation is traced, an
    operation is a line. With `functions` only the operations of functions of these names count.
    """

    packages = 'mxnet', 'svrg_optimization', 'contextlib'
    event = 'opcode' if sys.version_info < (3, 12) else 'line'

    def __init__(self, call, at=None, functions=None):
        self.operations = 0
        self._reference, self._functions = at, functions
        self._tracer = sys.gettrace()  # that of coverage
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(self._tracer)
            self.left_on = autograd.is_recording() or autograd.is_training()
            autograd.set_training(False)
            autograd.set_recording(False)

    def _trace(self, frame, event, _):
        if frame.f_globals.get('__name__', '').partition('.')[0] not in self.packages:
            return None
        if self._functions and frame.f_code.co_name not in self._functions:
            return None
        frame.f_trace_opcodes = self.event == 'opcode'
        if event == self.event:
            self.operations += 1
            if self.operations == self._reference:
                sys.settrace(self._tracer)
                raise KeyboardInterrupt
        return self._trace

"""Shards of a problem's rows, and what goes wrong with them."""

import mxnet as mx
import numpy as np

from bad_input import Data
from problems import CsrIter, Problem, SparseProblem


def problem_of(arguments, sizes, make=Problem):
    """Make a problem with the rows of all shards, of the arguments that a test gives.

    With `units` the columns have these, and weights begin at zero.
    """
    arguments = {'rows': sum(sizes), **dict(arguments)}
    mean, units = arguments.pop('mean', False), arguments.pop('units', None)
    problem = (SparseProblem if arguments.pop('sparse', False) else make)(**arguments)
    if mean:
        problem.symbol = mx.sym.SoftmaxOutput(problem.symbol.get_internals()['fc_output'],
                                              mx.sym.Variable('label'), normalization='batch')
    if units is not None:
        problem.features *= units
        problem.weights = {name: np.zeros_like(value) for name, value in problem.weights.items()}
    return problem


def shard_of(problem, sizes, rank, batch_size, last_batch_handle='pad'):
    """Return the iterator over the rows of one rank; sizes are those of all shards."""
    begin = sum(sizes[:rank])
    rows = slice(begin, begin + sizes[rank])
    if not sizes[rank]:
        return Data(like=problem.iterator(batch_size))
    if isinstance(problem, SparseProblem):
        return CsrIter(problem.features[rows], problem.targets[rows], batch_size)
    return mx.io.NDArrayIter(problem.features[rows], problem.targets[rows], batch_size,
                             label_name='label', last_batch_handle=last_batch_handle)


def error_of(call, *arguments):
    """Return the message of the ValueError that a call must raise."""
    try:
        call(*arguments)
    except ValueError as error:
        return str(error)
    return None


def weights_of(module):
    """Read a module's weights without any synchronization with others."""
    return {name: value.asnumpy() for name, value in module.get_params()[0].items()}

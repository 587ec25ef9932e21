r"""Proximal operators of regularizers that have no gradient: L1, group lasso, bounds.

.. math:: \mathrm{prox}_{\eta R}(v)
          = \operatorname{arg\,min}_w \frac{1}{2} \|w - v\|^2 + \eta R(w)
"""

import functools
import math
import numbers
from typing import Any, Protocol

import numpy as np
from mxnet import ndarray as nd

from ._argument_checks import SMALLEST, checked_number

__all__ = ['L1', 'GroupLasso', 'Box', 'ProximalOperator']


class ProximalOperator(Protocol):
    """Proximal operator of a function R, and R itself: the protocol that all operators follow.

    A class of your own needs the two methods and need not be a subclass. An
    object of it may serve many parameters, so it must not keep anything about
    one of them.
    """

    def prox(self, weight: Any, step_size: float) -> None:
        r"""Replace a weight v by the w that minimizes :math:`\|w - v\|^2 / 2 + \eta R(w)`.

        Parameters
        ----------
        weight : NDArray
            v, dense, float32 or float64, in the shape of the parameter;
            overwritten with w. Of a row_sparse parameter it contains the rows
            that are stored.
        step_size : float
            :math:`\eta`, the learning rate of this parameter at this update.
        """
        raise NotImplementedError

    def value(self, weight: Any) -> float:
        """Return R of a weight.

        Parameters
        ----------
        weight : NDArray
            The weight, dense or row_sparse, in the shape of the parameter.

        Returns
        -------
        float
            R in units of the mean loss of a row; infinite where a constraint
            does not hold.
        """
        raise NotImplementedError

    def __repr__(self):
        return '%s(%s)' % (type(self).__name__, ', '.join(
            '%s=%r' % item for item in vars(self).items()))


class Box(ProximalOperator):
    r"""Bounds, :math:`l \le w_i \le h`: R is 0 where they hold, and infinite elsewhere.

    The operator is the projection. ``Box(0)`` makes weights non-negative.

    Parameters
    ----------
    low, high : float
        l and h. An infinite one is no bound. They are rounded to float32.

    Raises
    ------
    TypeError
        If one of them is not a number.
    ValueError
        If one of them is a NaN, or `low` is above `high`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import Box
    >>> weight = mx.nd.array([3, -1, 0.5])
    >>> Box(0, 1).value(weight)
    inf
    >>> Box(0, 1).prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist(), Box(0, 1).value(weight)
    ([1.0, 0.0, 0.5], 0.0)
    """

    def __init__(self, low: float = -math.inf, high: float = math.inf) -> None:
        self.low = float(checked_number('low', low, 'a number, and no NaN',
                                        lambda number: not math.isnan(number)))
        self.high = float(checked_number('high', high, 'a number of low, %r, or more' % low,
                                         lambda number: number >= self.low))

    def prox(self, weight: Any, step_size: float) -> None:
        """Clip a weight in place; see `ProximalOperator.prox`."""
        library = _library_of(weight)
        for limit, bound in zip((library.maximum, library.minimum), self._bounds()):
            if math.isfinite(bound):  # MXNet may refuse to read an infinite argument
                _assign(weight, limit(weight, bound))

    def value(self, weight: Any) -> float:
        """Return 0 if the bounds hold for the whole weight, infinity otherwise."""
        low, high = np.array(self._bounds()).astype(weight.dtype)
        weight = _float64(weight).asnumpy()
        return 0. if ((low <= weight) & (weight <= high)).all() else math.inf

    def _axes_of_one_step(self, ndim):
        """Return the axes along which step sizes of `prox` must be equal: none."""
        return ()

    def _bounds(self):
        return np.float32([self.low, self.high]).tolist()


class L1(Box):
    r"""L1 norm, :math:`R(w) = \lambda \sum_i |w_i|`: the lasso, which may have bounds.

    The operator moves each element towards 0 by :math:`\eta \lambda`, and sets
    it to exactly 0 if it is nearer than that. Together with the optimizer's `wd` this is the
    elastic net, and with ``low=0`` it is the non-negative lasso.

    Parameters
    ----------
    strength : float
        :math:`\lambda`, 0 or more, in units of the mean loss.
    low, high : float
        Bounds, as in `Box`; none by default.

    Raises
    ------
    TypeError
        If one of them is not a number.
    ValueError
        If `strength` is below 0, infinite or a NaN, or the bounds are not those of a `Box`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import L1
    >>> weight = mx.nd.array([3, -1, 0.5])
    >>> L1(2).value(weight)
    9.0
    >>> L1(2).prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist()
    [2.0, 0.0, 0.0]
    """

    def __init__(self, strength: float, low: float = -math.inf,
                 high: float = math.inf) -> None:
        self.strength = _checked_strength(strength)
        super().__init__(low, high)

    def prox(self, weight: Any, step_size: float) -> None:
        """Soft-threshold a weight in place; see `ProximalOperator.prox`."""
        threshold, library = step_size * self.strength, _library_of(weight)
        weight -= library.maximum(library.minimum(weight, threshold), -threshold)
        super().prox(weight, step_size)

    def value(self, weight: Any) -> float:
        """Return the strength times the sum of the absolute values, or infinity."""
        return self.strength * _sum(_float64(weight).abs()) + super().value(weight)


class GroupLasso(ProximalOperator):
    r"""Sum of the L2 norms of groups, :math:`R(w) = \lambda \sum_g \|w_g\|` [1]_.

    Either all elements of a group are exactly 0 or the group as a whole is not. All groups have
    the same strength. With ``low=0`` weights are non-negative: a step clips them and then
    shortens the groups.

    Parameters
    ----------
    strength : float
        :math:`\lambda`, 0 or more, in units of the mean loss.
    axis : int
        Axis that counts the groups. With 0 each row of a matrix is a group,
        with 1 or -1 each column. The weight of a FullyConnected layer has a row
        for each output and a column for each input: 0 removes whole units, 1
        whole features.
    low : float
        0, or -inf for no bound.

    Raises
    ------
    TypeError
        If `strength` or `low` is not a number or `axis` is not an int.
    ValueError
        If `strength` is below 0, infinite or a NaN, or `low` another number.

    References
    ----------
    .. [1] M. Yuan and Y. Lin, "Model Selection and Estimation in Regression
       with Grouped Variables", J. R. Stat. Soc. B 68(1), 2006.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import GroupLasso
    >>> weight = mx.nd.array([[3, 4], [0.6, 0.8]])
    >>> GroupLasso(5, axis=0).prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist()
    [[1.5, 2.0], [0.0, 0.0]]
    """

    def __init__(self, strength: float, axis: int, low: float = -math.inf) -> None:
        self.strength = _checked_strength(strength)
        self.axis = checked_number('axis', axis, 'an int', lambda _: True, numbers.Integral)
        self.low = float(checked_number('low', low, '0 or -inf',
                                        lambda number: number in (0, -math.inf)))

    def prox(self, weight: Any, step_size: float) -> None:
        """Shorten each group of a weight in place; see `ProximalOperator.prox`."""
        threshold, library = step_size * self.strength, _library_of(weight)
        Box(self.low).prox(weight, step_size)
        weight *= 1 - threshold / library.maximum(self._norms(weight), library.maximum(
            threshold, SMALLEST))

    def value(self, weight: Any) -> float:
        """Return the strength times the sum of the norms of the groups."""
        return self.strength * _sum(self._norms(_float64(weight))) + Box(self.low).value(weight)

    def _axes_of_one_step(self, ndim):
        """Return the axes along which step sizes of `prox` must be equal: those of a group."""
        return tuple(axis for axis in range(ndim) if axis != self.axis % ndim)

    def _norms(self, weight):
        if isinstance(weight, np.ndarray):
            others = tuple(np.delete(np.arange(weight.ndim), self.axis))
            return np.sqrt(np.square(weight).sum(axis=others, keepdims=True))
        return weight.square().sum(axis=self.axis, exclude=True, keepdims=True).sqrt()


def _assign(weight, values):
    """Set a weight to others; MXNet's ``weight[:] = values`` takes ten times as long."""
    if isinstance(weight, np.ndarray):
        weight[:] = values
    else:
        values.copyto(weight)


def _library_of(weight):
    """Return NumPy for its arrays, which the operators of this package take too."""
    return np if isinstance(weight, np.ndarray) else nd


def _checked_strength(value):
    return float(checked_number('strength', value, 'a number of 0 or more',
                                lambda number: 0 <= number < math.inf))


def _float64(weight):
    return weight.tostype('default').astype('float64')


def _sum(array):
    return float(array.sum().asscalar())


# How the weights of a model get operators.

def weights_of(symbol, trainable):
    """List the parameters that have weight decay, without gammas."""
    attributes = symbol.attr_dict()
    return [name for name in trainable
            if float(attributes.get(name, {}).get('__wd_mult__', name.endswith('_weight')))]


class ProximalOperators:
    """Checked value of the argument `proximal`: the operator of each parameter, `by_name`.

    A single operator applies to all `weights`. `trainable` are the parameters that are trained.
    """

    def __init__(self, proximal, trainable, weights):
        self.by_name = proximal or {}
        if proximal is not None and not isinstance(proximal, dict):
            _check_operator(proximal)
            self.by_name = dict.fromkeys(weights, proximal)
            if not weights:
                raise ValueError('proximal must be a dict from parameter name to operator where no '
                                 'parameter has weight decay by its name: ' + ', '.join(trainable))
        for name, operator in self.by_name.items():
            _check_operator(operator)
            if name not in trainable:
                raise ValueError('proximal must be for trained parameters (%s), not for %r'
                                 % (', '.join(trainable), name))

    def steps(self, idx2name):
        """Map each parameter's name and numbers to the function that applies its operator."""
        steps = {name: functools.partial(_step, operator)
                 for name, operator in self.by_name.items()}
        return {**steps, **{number: steps[name] for number, name in idx2name.items()
                            if name in steps}}


def _step(operator, weight, state, step_size):
    """Apply an operator to a weight that has just been stepped.

    With `multi_precision` the state of a float16 weight is a tuple, whose second element is a
    float32 copy of the weight.
    """
    exact = weight
    if isinstance(state, tuple):
        exact = state[1]
    elif weight.stype == 'row_sparse':
        exact = weight.data  # a copy
    elif weight.dtype == np.float16:
        exact = weight.astype('float32')
    operator.prox(exact, step_size)
    if weight.stype == 'row_sparse':
        exact = nd.sparse.row_sparse_array((exact, weight.indices), shape=weight.shape,
                                           ctx=weight.context, dtype=weight.dtype)
    if exact is not weight:
        exact.copyto(weight)


def _check_operator(operator):
    if isinstance(operator, type) or not all(
            callable(getattr(operator, method, None)) for method in ('prox', 'value')):
        raise TypeError('proximal must be None, an operator with the methods prox and value, or a '
                        'dict from parameter name to operator, not %r' % (operator,))


_OURS = {operator.__name__: operator for operator in (L1, GroupLasso, Box)}


def is_ours(operator):
    """Tell whether an operator is one of this package.

    A file can hold it, and its `prox` also takes NumPy arrays, with a step size for each element.
    """
    return _OURS.get(type(operator).__name__) is type(operator)


def operators_as_json(given):
    """Return the argument `proximal` as types that JSON supports; None if one is not ours."""
    if given is None or isinstance(given, dict):
        parts = {name: operators_as_json(part) for name, part in (given or {}).items()}
        return None if None in parts.values() else parts
    return [type(given).__name__, vars(given)] if is_ours(given) else None


def operators_from_json(saved):
    """Return the argument that `operators_as_json` was called with; {} for None."""
    if isinstance(saved, dict):
        return {name: operators_from_json(part) for name, part in saved.items()}
    return _OURS[saved[0]](**saved[1])

r"""Proximal operators of regularizers that have no gradient: L1, group lasso, bounds.

.. math:: \mathrm{prox}_{\eta R}(v)
          = \operatorname{arg\,min}_w \frac{1}{2} \|w - v\|^2 + \eta R(w)

A parameter server imports this file while MXNet is half imported.
"""

import math
import numbers
import pickle

import numpy as np
from mxnet import ndarray as nd
from mxnet import optimizer as opt

from ._argument_checks import checked_number
from .svrg_optimizer import described

# Elements above which three vectorized operations are faster than MXNet's clipping, which
# branches at each element.
_SLOW_TO_CLIP = 1 << 14
_SMALLEST = 1e-37  # near the least number that float32 has in full precision


class ProximalOperator:
    """Proximal operator of a function R, and R itself: the protocol that all operators follow.

    A class of your own needs the two methods and need not be a subclass. An
    object of it may serve many parameters, so it must not keep anything about
    one of them.

    Attributes
    ----------
    is_elementwise : bool
        Whether each element of a weight is changed without regard to the
        others. Such an operator may get a part of a weight, in any shape, on
        the servers of a distributed KVStore. Without the attribute, it is False.
    """

    is_elementwise = False

    def prox(self, weight, step_size):
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

    def value(self, weight):
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


class L1(ProximalOperator):
    r"""L1 norm, :math:`R(w) = \lambda \sum_i |w_i|`: the lasso.

    The operator moves each element towards 0 by :math:`\eta \lambda`, and sets
    it to exactly 0 where it is nearer than that.

    Parameters
    ----------
    strength : float
        :math:`\lambda`, 0 or more, in units of the mean loss.

    Raises
    ------
    TypeError
        If `strength` is not a number.
    ValueError
        If `strength` is below 0, infinite or a NaN.

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

    is_elementwise = True

    def __init__(self, strength):
        self.strength = _checked_strength('strength', strength)

    def prox(self, weight, step_size):
        """Soft-threshold a weight in place; see `ProximalOperator.prox`."""
        _soft_threshold(weight, step_size * self.strength)

    def value(self, weight):
        """Return the strength times the sum of the absolute values."""
        return self.strength * _sum(_float64(weight).abs())


class ElasticNet(ProximalOperator):
    r"""L1 and squared L2 norm, :math:`R(w) = \lambda_1 \sum_i |w_i| + \lambda_2 \|w\|^2 / 2`.

    An L1 beside the optimizer's `wd` has the same solution: `wd` is
    :math:`\lambda_2`.

    Parameters
    ----------
    l1, l2 : float
        :math:`\lambda_1` and :math:`\lambda_2`, 0 or more, in units of the
        mean loss.

    Raises
    ------
    TypeError
        If one of them is not a number.
    ValueError
        If one of them is below 0, infinite or a NaN.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import ElasticNet
    >>> weight = mx.nd.array([3, -1, 0.5])
    >>> ElasticNet(l1=2, l2=2).prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist()
    [1.0, 0.0, 0.0]
    """

    is_elementwise = True

    def __init__(self, l1, l2):
        self.l1, self.l2 = _checked_strength('l1', l1), _checked_strength('l2', l2)

    def prox(self, weight, step_size):
        """Soft-threshold a weight in place and shrink it; see `ProximalOperator.prox`."""
        _soft_threshold(weight, step_size * self.l1)
        weight /= 1 + step_size * self.l2

    def value(self, weight):
        """Return the weighted sum of the L1 norm and half the squared L2 norm."""
        weight = _float64(weight)
        return self.l1 * _sum(weight.abs()) + self.l2 / 2 * _sum(weight.square())


class GroupLasso(ProximalOperator):
    r"""Sum of the L2 norms of groups, :math:`R(w) = \lambda \sum_g \|w_g\|` [1]_.

    A group is exactly 0 as a whole or not at all. All groups have the same
    strength.

    Parameters
    ----------
    strength : float
        :math:`\lambda`, 0 or more, in units of the mean loss.
    axis : int
        Axis that counts the groups. With 0 each row of a matrix is a group,
        with 1 or -1 each column. The weight of a FullyConnected layer has a row
        for each output and a column for each input: 0 removes whole units, 1
        whole features.

    Raises
    ------
    TypeError
        If `strength` is not a number or `axis` is not an int.
    ValueError
        If `strength` is below 0, infinite or a NaN.

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

    def __init__(self, strength, axis):
        self.strength = _checked_strength('strength', strength)
        self.axis = checked_number('axis', axis, 'an int', lambda _: True, numbers.Integral)

    def prox(self, weight, step_size):
        """Shorten each group of a weight in place; see `ProximalOperator.prox`."""
        threshold = step_size * self.strength
        weight *= 1 - threshold / nd.maximum(self._norms(weight), nd.maximum(threshold, _SMALLEST))

    def value(self, weight):
        """Return the strength times the sum of the norms of the groups."""
        return self.strength * _sum(self._norms(_float64(weight)))

    def _norms(self, weight):
        return weight.square().sum(axis=self.axis, exclude=True, keepdims=True).sqrt()


class Box(ProximalOperator):
    r"""Bounds, :math:`l \le w_i \le h`: R is 0 where they hold, and infinite elsewhere.

    The operator is the projection. The step size does not matter to it.

    Parameters
    ----------
    low, high : float
        l and h. They may be infinite: there is no such bound then. MXNet rounds
        them to float32.

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

    is_elementwise = True

    def __init__(self, low, high):
        self.low = float(checked_number('low', low, 'a number, and no NaN',
                                        lambda number: not math.isnan(number)))
        self.high = float(checked_number('high', high, 'a number of low, %r, or more' % low,
                                         lambda number: number >= self.low))

    def prox(self, weight, step_size):
        """Clip a weight in place; see `ProximalOperator.prox`."""
        weight.clip(self.low, self.high, out=weight)

    def value(self, weight):
        """Return 0 if the bounds hold for the whole weight, infinity otherwise."""
        weight = _float64(weight)
        return math.inf if _sum(weight != weight.clip(self.low, self.high)) else 0.


class NonNegative(ProximalOperator):
    r"""Constraint :math:`w_i \ge 0`: R is 0 where it holds, and infinite elsewhere.

    The operator is the projection. The step size does not matter to it.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import NonNegative
    >>> weight = mx.nd.array([3, -1, 0.5])
    >>> NonNegative().prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist()
    [3.0, 0.0, 0.5]
    """

    is_elementwise = True

    def prox(self, weight, step_size):
        """Replace the negative elements of a weight by 0; see `ProximalOperator.prox`."""
        nd.relu(weight, out=weight)

    def value(self, weight):
        """Return 0 if no element is negative, infinity otherwise."""
        return 0. if (_float64(weight) >= 0).min().asscalar() else math.inf


class Bounded(ProximalOperator):
    r"""An `L1` or `ElasticNet` with bounds, :math:`R(w) + B(w)`: the non-negative lasso, for one.

    Parameters
    ----------
    operator : L1 or ElasticNet
        That of R.
    bounds : Box or NonNegative
        That of B. As each element has bounds of its own, the projection after the
        operator is exact.

    Raises
    ------
    TypeError
        If one of them is another operator.

    Examples
    --------
    >>> import mxnet as mx
    >>> from svrg_optimization.proximal import L1, Bounded, NonNegative
    >>> weight = mx.nd.array([3, -1, 0.5])
    >>> Bounded(L1(0.5), NonNegative()).prox(weight, step_size=0.5)
    >>> weight.asnumpy().tolist()
    [2.75, 0.0, 0.25]
    """

    is_elementwise = True

    def __init__(self, operator, bounds):
        for name, value, kinds in (('operator', operator, (L1, ElasticNet)),
                                   ('bounds', bounds, (Box, NonNegative))):
            if type(value) not in kinds:
                raise TypeError('%s must be %s, not %r' % (
                    name, ' or '.join(kind.__name__ for kind in kinds), value))
        self.operator, self.bounds = operator, bounds

    def prox(self, weight, step_size):
        """Apply the operator to a weight in place, and clip it; see `ProximalOperator.prox`."""
        self.operator.prox(weight, step_size)
        self.bounds.prox(weight, step_size)

    def value(self, weight):
        """Return R of the weight if the bounds hold, infinity otherwise."""
        return self.operator.value(weight) + self.bounds.value(weight)


_OURS = {operator.__name__: operator
         for operator in (L1, ElasticNet, GroupLasso, Box, NonNegative, Bounded)}


def is_ours(operator):
    """Tell whether an operator is one of this package."""
    return _OURS.get(type(operator).__name__) is type(operator)


def _soft_threshold(weight, threshold):
    """Move each element of a weight towards 0 by a threshold, and no further than 0."""
    if (weight.size > _SLOW_TO_CLIP or weight.dtype == np.float64
            or isinstance(threshold, nd.NDArray)):
        nd.elemwise_add(nd.maximum(weight, threshold), nd.minimum(weight, -threshold), out=weight)
    else:
        # A step of sgd at a rate of 1 along the clipped weight itself, clipped in float32.
        nd.sgd_update(weight, weight, out=weight, lr=1., wd=0., clip_gradient=threshold)


def _checked_strength(name, value):
    return float(checked_number(name, value, 'a number of 0 or more',
                                lambda number: 0 <= number < math.inf))


def _float64(weight):
    return weight.tostype('default').astype('float64')


def _sum(array):
    return float(array.sum().asscalar())


class ProximalStep:
    """Proximal operator of one parameter, as an optimizer applies it to its weight.

    Parameters
    ----------
    operator : object
        The operator.
    shape : tuple of int
        Shape of the parameter. Servers store dense weights flat.
    """

    def __init__(self, operator, shape):
        self.operator, self.shape = operator, shape

    def __call__(self, weight, state, step_size):
        """Apply the operator to a weight that has just been stepped.

        Parameters
        ----------
        weight : NDArray
            Weight, or the part of it that a server has; overwritten.
        state : tuple or None
            State of sgd without momentum. It is a tuple, with a float32 copy of
            the weight as its second element, if the weight is float16 and the
            optimizer has `multi_precision`.
        step_size : float or NDArray
            Learning rate of the step, or those of the weight's columns.
        """
        if isinstance(state, tuple):
            self._apply(state[1], step_size)
            state[1].copyto(weight)
        elif weight.stype == 'row_sparse':
            rows = weight.data  # a copy
            self.operator.prox(rows, step_size)
            nd.sparse.row_sparse_array((rows, weight.indices), shape=weight.shape,
                                       ctx=weight.context, dtype=weight.dtype).copyto(weight)
        elif weight.dtype == np.float16:
            exact = weight.astype('float32')
            self._apply(exact, step_size)
            exact.copyto(weight)
        else:
            self._apply(weight, step_size)

    def _apply(self, weight, step_size):
        if weight.shape != self.shape and not _is_elementwise(self.operator):
            weight = weight.reshape(self.shape)
        self.operator.prox(weight, step_size)


class ProximalOperators:
    """Checked value of SVRGModule's `proximal`.

    Parameters
    ----------
    proximal : operator, dict of str to operator, or None
        The argument.
    trainable : list of str
        Parameters that are trained.
    weights : list of str
        Those that one operator is for.
    sparse_full_grad : bool
        The module's `sparse_full_grad`.

    Attributes
    ----------
    given : operator or dict of str to operator
        The argument; an empty dict for None.
    by_name : dict of str to operator
        Operator of each parameter that has one.

    Raises
    ------
    TypeError
        If it is not None, an operator or a dict of operators.
    ValueError
        If a name of the dict is not in `trainable`, if one operator is given
        and there are no weights, or `sparse_full_grad` is set.
    """

    def __init__(self, proximal, trainable, weights, sparse_full_grad=False):
        proximal = {} if proximal is None else proximal
        self.given = dict(proximal) if isinstance(proximal, dict) else proximal
        self.by_name = self.given
        if not isinstance(self.given, dict):
            _check_operator(proximal)
            self.by_name = dict.fromkeys(weights, proximal)
            if not self.by_name:
                raise ValueError('proximal must be a dict from parameter name to operator where '
                                 'no trained parameter has weight decay by its name: %s'
                                 % ', '.join(trainable))
        for name, operator in self.by_name.items():
            _check_operator(operator)
            if name not in trainable:
                raise ValueError('proximal must be for trained parameters (%s), not for %r'
                                 % (', '.join(trainable), name))
        if self.by_name and sparse_full_grad:
            raise ValueError('sparse_full_grad must be False for proximal: its operator changes '
                             'all rows in each step, not only those of the batch')

    def check_optimizer(self, optimizer, optimizer_params, shapes, whole_on_servers=None):
        """Raise a ValueError if the operators do not fit an optimizer or a KVStore.

        Parameters
        ----------
        optimizer : str or mxnet.optimizer.Optimizer
            Optimizer of the weights.
        optimizer_params : dict
            Arguments of an optimizer that is given by name.
        shapes : dict of str to tuple of int
            Shape of each parameter.
        whole_on_servers : float, optional
            Number of elements that a weight must be below to be on one server
            as a whole. None if no servers update the weights.

        Raises
        ------
        ValueError
            If the optimizer is not sgd without momentum, if a GroupLasso has an
            axis that its parameter lacks, or if servers update the weights and
            cannot get an operator or the whole of a group.
        """
        if not self.by_name:
            return
        lacking = sorted(set(self.by_name) - set(shapes))
        if lacking:
            raise ValueError('proximal must be for parameters of the bucket that init_optimizer is '
                             'called for, and %s is not one' % ', '.join(lacking))
        klass, name, arguments = described(optimizer, optimizer_params)
        if arguments.get('momentum'):
            name += ' with momentum %g' % arguments['momentum']
        if arguments.get('momentum') or not _steps_as_sgd(klass):
            raise ValueError('optimizer must be sgd without momentum for proximal, not %s: the '
                             'operator needs a step along the gradient with one rate' % name)
        for name, operator in self.by_name.items():
            if isinstance(operator, GroupLasso) and not (
                    -len(shapes[name]) <= operator.axis < len(shapes[name])):
                raise ValueError('axis must be an axis of %s, which has the shape %s, not %d'
                                 % (name, shapes[name], operator.axis))
            if whole_on_servers is None:
                continue
            _check_reaches_servers(operator)
            if not _is_elementwise(operator) and np.prod(shapes[name]) >= whole_on_servers:
                raise ValueError('proximal must have is_elementwise for %s, whose %d elements the '
                                 'kvstore splits among its servers, and %r has not. Set '
                                 'MXNET_KVSTORE_BIGARRAY_BOUND to a larger number or '
                                 'MXNET_UPDATE_ON_KVSTORE=0'
                                 % (name, np.prod(shapes[name]), operator))

    def check_borrowed(self, lent, has_same_keys):
        """Raise a ValueError if a borrowed optimizer does not apply these operators.

        Parameters
        ----------
        lent : ProximalOperators or None
            Operators of the module that lends its optimizer; None for a plain
            Module.
        has_same_keys : bool
            Whether the optimizer is called with the same key for a parameter by
            both modules.

        Raises
        ------
        ValueError
            If the operators or the keys differ.
        """
        is_equal = self.by_name == (lent.by_name if lent else {}) or (
            lent is not None and None is not operators_as_json(self.given)
            == operators_as_json(lent.given))
        if not is_equal:
            raise ValueError('proximal must be that of shared_module, whose optimizer has the '
                             'operators, not %r' % (self.given,))
        if self.by_name and not has_same_keys:
            raise ValueError('proximal needs a kvstore that updates the weights '
                             '(MXNET_UPDATE_ON_KVSTORE=1) for a module with other parameters than '
                             'shared_module, or for such a bucket: MXNet numbers them otherwise')

    def steps(self, arrays, idx2name):
        """Return what an optimizer applies, under each parameter's name and its numbers.

        Parameters
        ----------
        arrays : dict of str to NDArray
            Parameters.
        idx2name : dict of int to str
            Parameter of each number.

        Returns
        -------
        dict of (str or int) to ProximalStep
        """
        steps = {name: ProximalStep(operator, arrays[name].shape)
                 for name, operator in self.by_name.items()}
        return {**steps, **{number: steps[name] for number, name in idx2name.items()
                            if name in steps}}


def _as_json(value):
    """Return an operator as its name and arguments, which may be operators; all else as it is."""
    if not isinstance(value, ProximalOperator):
        return value
    return [type(value).__name__, {name: _as_json(part) for name, part in vars(value).items()}]


def operators_as_json(given):
    """Return the argument `proximal` as types that JSON supports; None if one is not ours."""
    if given is None:
        return {}
    parts = given if isinstance(given, dict) else {'': given}
    if not all(map(is_ours, parts.values())):
        return None
    parts = {name: _as_json(part) for name, part in parts.items()}
    return parts if isinstance(given, dict) else parts['']


def operators_from_json(saved):
    """Return the argument that `operators_as_json` was called with; {} for None."""
    if isinstance(saved, list):
        return _OURS[saved[0]](**operators_from_json(saved[1]))
    if isinstance(saved, dict):
        return {name: operators_from_json(part) for name, part in saved.items()}
    return saved


def _check_operator(operator):
    if isinstance(operator, type) or not all(
            callable(getattr(operator, method, None)) for method in ('prox', 'value')):
        raise TypeError('proximal must be None, an operator with the methods prox and value, or a '
                        'dict from parameter name to operator, not %r' % (operator,))


def _check_reaches_servers(operator):
    """Raise a ValueError if servers cannot unpickle an operator."""
    if type(operator).__module__ == '__main__':
        raise ValueError('proximal must be of a class that servers can import, not of __main__ as '
                         '%r: define it in a module on their PYTHONPATH' % (operator,))
    try:
        pickle.dumps(operator, 0)
    except Exception as error:
        raise ValueError('proximal must be an operator that can be pickled for the servers, not '
                         '%r (%s)' % (operator, error)) from error


def _is_elementwise(operator):
    return bool(getattr(operator, 'is_elementwise', False))


def _steps_as_sgd(klass):
    """Tell whether a class is sgd or, as momentum is refused, nag, or a subclass that steps so."""
    return isinstance(klass, type) and any(issubclass(klass, base) and all(
        getattr(klass, name) is getattr(base, name)
        for name in ('update', 'update_multi_precision', '_update_impl'))
        for base in (opt.SGD, opt.NAG))


def weights_of(symbol, trainable):
    """List the parameters that have weight decay, without gammas."""
    attributes = symbol.attr_dict()
    return [name for name in trainable
            if float(attributes.get(name, {}).get('__wd_mult__', name.endswith('_weight')))]

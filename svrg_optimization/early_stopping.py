"""End a training that has not become better for some epochs, and keep its best weights."""

import contextlib
import inspect
import math
from typing import Any, Optional

from mxnet import metric, registry

from ._argument_checks import checked_count


class EarlyStopping:
    """End a training after `patience` epochs without a better value of a validation metric.

    At the end of the ``with`` block the model has the weights of the best epoch.

    Parameters
    ----------
    model : Module or SVRGTrainer
        What is trained.
    mode : {'min', 'max'}
        Which values are better: small ones, as of a loss, or large ones, as of an accuracy.
    patience : int
        Epochs without a better value after which training ends.
    monitor : str, optional
        Name of the metric that decides, where `fit` has several.

    Attributes
    ----------
    best : float
        The best value.
    best_epoch : int or None
        Its epoch, counted from the beginning of the block. None if no value was checked that is a
        number, as where `fit` has ended before its first epoch.

    Examples
    --------
    In ``fit`` the metric of the validation data decides::

        with EarlyStopping(module, 'min', patience=5) as stopping:
            module.fit(train_data, valid_data, eval_metric='ce', eval_end_callback=stopping, ...)

    In a loop you give the value::

        with EarlyStopping(trainer, 'min', patience=5) as stopping:
            for batches in trainer.epochs(train_data, 100):
                ...
                stopping.check(loss_of_validation_data())
    """

    best: float
    best_epoch: Optional[int]

    def __init__(self, model: Any, mode: str, patience: int = 5,
                 monitor: Optional[str] = None) -> None:
        if mode not in ('min', 'max'):
            raise ValueError("mode must be 'min' for a loss or 'max' for an accuracy, not %r"
                             % (mode,))
        self._model, self._sign = model, 1 if mode == 'min' else -1
        self._patience = checked_count('patience', patience)
        if not (monitor is None or isinstance(monitor, str)):
            raise TypeError('monitor must be None or the name of a metric, not %r' % (monitor,))
        self._monitor = monitor
        self._epoch, self._since, self._weights = 0, 0, None
        self.best, self.best_epoch = self._sign * math.inf, None

    def __call__(self, param: Any) -> None:
        """Check the value of a metric at the end of an epoch, as an `eval_end_callback`."""
        self.check(self._value_of(param.eval_metric))

    def check_metric(self, eval_data: Any, validation_metric: Any) -> None:
        """Raise a ValueError if `fit` will have no value to check, before its first epoch."""
        if eval_data is None:
            raise ValueError('eval_data must be given with an EarlyStopping, and not be None')
        with contextlib.suppress(ArithmeticError):  # of a metric that divides by no batches
            self._value_of(metric.create(validation_metric))

    def _value_of(self, eval_metric):
        values, monitor = eval_metric.get_name_value(), self._monitor
        names = [name for name, _ in values]
        if monitor not in names:  # maybe it is an alias, as 'ce' of 'cross-entropy'
            klass = registry.get_registry(metric.EvalMetric).get((monitor or '').lower())
            given = klass and inspect.signature(klass).parameters.get('name')
            monitor = given.default if given else monitor
        if len(values) == 1 and monitor is None or names.count(monitor) == 1:
            return values[0 if monitor is None else names.index(monitor)][1]
        raise ValueError('monitor of an EarlyStopping must name one of the metrics %s, and not be '
                         '%r' % (names, self._monitor))

    def check(self, value: float) -> None:
        """Check a value at the end of an epoch."""
        self._since += 1
        if self._sign * value < self._sign * self.best:
            self.best, self.best_epoch, self._since = float(value), self._epoch, 0
            self._weights = _copies(self._model)
        self._epoch += 1
        if self._since >= self._patience:
            if hasattr(self._model, '_conclude'):  # unlike Module, it has a result
                self._model._conclude('stopped early')
            raise _NoGain(self)

    def __enter__(self) -> 'EarlyStopping':
        return self

    def __exit__(self, _: Any, error: Any, traceback: Any) -> bool:
        has_stopped = isinstance(error, _NoGain) and error.args[0] is self
        if self._weights is not None and (has_stopped or error is None):
            if hasattr(self._model, 'set_params'):
                self._model.set_params(*self._weights)
            else:
                for param, value in zip(self._model._params, self._weights):
                    param.set_data(value)
        return has_stopped


class _NoGain(Exception):  # noqa: N818
    """Leaves the loop for the end of the ``with`` block."""


def _copies(model):
    if hasattr(model, 'get_params'):
        return [{name: value.copy() for name, value in each.items()}
                for each in model.get_params()]
    return [param.data(param.list_ctx()[0]).copy() for param in model._params]

"""End a training that has not become better for some epochs, and keep its best weights."""

import math
from typing import Any, Optional

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

    Attributes
    ----------
    best : float
        The best value.
    best_epoch : int or None
        Its epoch, counted from the beginning of the block.

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

    def __init__(self, model: Any, mode: str, patience: int = 5) -> None:
        if mode not in ('min', 'max'):
            raise ValueError("mode must be 'min' for a loss or 'max' for an accuracy, not %r"
                             % (mode,))
        self._model, self._sign = model, 1 if mode == 'min' else -1
        self._patience = checked_count('patience', patience)
        self._epoch, self._since, self._weights = 0, 0, None
        self.best, self.best_epoch = self._sign * math.inf, None

    def __call__(self, param: Any) -> None:
        """Check the value of a metric at the end of an epoch, as an `eval_end_callback`."""
        (_, value), *others = param.eval_metric.get_name_value()
        if others:
            raise ValueError('eval_metric must be one metric for an EarlyStopping, not %s'
                             % param.eval_metric)
        self.check(value)

    def check(self, value: float) -> None:
        """Check a value at the end of an epoch."""
        self._since += 1
        if self._sign * value < self._sign * self.best:
            self.best, self.best_epoch, self._since = float(value), self._epoch, 0
            self._weights = _copies(self._model)
        self._epoch += 1
        if self._since >= self._patience:
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

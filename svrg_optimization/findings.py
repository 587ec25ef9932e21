"""What all front ends tell of a training, and the settings that may be set later."""

from typing import Any, Optional

from .core.settings import setting
from .core.svrg import SVRG
from .rate.objective import Objective
from .rate.result import Result


class Findings:
    """What the snapshots of a front end have found.

    A front end has an SVRG and a TrainedModel.
    """

    _svrg: SVRG
    _trained: Any

    alpha, tol = setting('alpha'), setting('tol')

    @property
    def gradient_norm(self) -> Optional[float]:
        r"""Largest component of the gradient at the latest snapshot; None before the first.

        It is that of the mean objective per row, with the weight decay that the
        optimizer applies,

        .. math:: \max_i |\mu_i / B + wd_i \tilde w_i|,

        over the parameters that are updated. If you set `rescale_grad` to r, wd
        is divided by B r in a module, or by B r W with W synchronous workers, without the factor
        B if the loss is a mean; and by r in a trainer. With `proximal` it is the
        largest component of the gradient mapping at the current learning rate
        :math:`\eta`,

        .. math:: (\tilde w - \mathrm{prox}_{\eta R}(\tilde w - \eta \nabla F(\tilde w)))
                  / \eta.

        With newton_cg that rate is 1.
        """
        return self._objective.norm

    @property
    def full_objective(self) -> Optional[float]:
        """Mean objective per row at the latest snapshot.

        It is the mean loss of all rows, plus half the weight decay times the squared weights,
        plus the value of the proximal operators. It is None before the first snapshot, and if
        the loss is a custom operator, whose value is not known.
        """
        return self._objective.value

    @property
    def has_converged(self) -> bool:
        """Whether training had converged at the latest snapshot, to `tol` or to the precision."""
        return self._svrg.training.has_converged(self._svrg.snapshot.number)

    @property
    def result(self) -> Optional[Result]:
        """What the latest snapshot found and, after the last one, why training ended.

        None before a snapshot.
        """
        return self._svrg.training.result(self._objective)

    @property
    def _objective(self):
        return Objective(self._svrg, self._trained)

    def _conclude(self, reason):
        """Let the result say why a training has ended before its last epoch."""
        if self._svrg.snapshot.is_active:
            self._svrg.training.conclude(self._objective, reason)

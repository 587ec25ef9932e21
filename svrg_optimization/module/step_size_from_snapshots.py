"""Learning rate that a BarzilaiBorwein takes from the snapshots of a Module."""

from ..core import rate
from ..step_size import BarzilaiBorwein
from . import executor_group
from .optimality import MeanGradient
from .optimizer_states import begin_anew


def step_size_rule_of(module):
    """Return the BarzilaiBorwein of a module's optimizer, None if it has none."""
    scheduler = module._optimizer.lr_scheduler if module.optimizer_initialized else None
    return scheduler if isinstance(scheduler, BarzilaiBorwein) else None


def take_snapshot_and_rate(module, batches_of_a_step, *arguments):
    """Take a snapshot, and let the BarzilaiBorwein of the module set the rate there.

    Parameters
    ----------
    module : SVRGModule
        Module being trained, whose optimizer has such a rule.
    batches_of_a_step : int
        Number of batches whose gradients make up one step.
    *arguments
        `source`, `reduction`, `done` and `at_of` of ``SVRG.take_snapshot``.
    """
    def go_to(weights):
        executor_group.set_weights(module, weights)
        executor_group.weights_have_moved(module)
        begin_anew(module, executor_group.parameters(module))

    svrg, rule = module._svrg, step_size_rule_of(module)
    gradient = MeanGradient(module, batches_of_a_step)
    negative = {name: value for name, value in gradient.multipliers.items() if value < 0}
    if negative:
        raise ValueError('lr_mult must be 0 or more with BarzilaiBorwein, and not %s' % negative)
    ways_back, epoch = rule.ways_back, svrg.epoch or 0
    rate.take_snapshot(svrg, module, rule, gradient, go_to, *arguments)
    if rule.ways_back > ways_back:
        module.logger.info('Epoch[%d] The learning rate was too large: back to the best snapshot',
                           epoch)
    module.logger.info('Epoch[%d] Learning rate=%g', epoch, rule(None))

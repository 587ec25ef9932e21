"""What the optimizer of a Module does with a gradient, for the rate and the norm of the core."""

import functools

from ..core import rate
from ..core.optimality import MeanGradient
from ..step_size import BarzilaiBorwein
from . import executor_group
from .optimizer_states import begin_anew, kvstore_of_weights, rate_multipliers, weight_decays


def step_size_rule_of(module):
    """Return the BarzilaiBorwein of a module's optimizer, None if it has none."""
    scheduler = module._optimizer.lr_scheduler if module.optimizer_initialized else None
    return scheduler if isinstance(scheduler, BarzilaiBorwein) else None


def mean_gradient(module, batches_of_a_step):
    """Return the MeanGradient of a module, W batches of which make up one step."""
    names = module._trainable
    if not module.optimizer_initialized:
        return MeanGradient(lambda _: 1., dict.fromkeys(names, 1.), dict.fromkeys(names, 0.))
    optimizer, by_number = module._optimizer, kvstore_of_weights(module) is None
    multipliers = {name: value for name, value in rate_multipliers(
        optimizer, names, by_number).items() if value}
    return MeanGradient(lambda _: optimizer.rescale_grad * batches_of_a_step, multipliers,
                        weight_decays(optimizer, list(multipliers), by_number), optimizer,
                        module._proximal.by_name)


def end_at_best(module):
    """Set a module to its best snapshot if the objective of the last one is above."""
    rate.end_at_best(module._svrg, step_size_rule_of(module), functools.partial(_go_to, module),
                     module.gradient_norm)


def _go_to(module, weights):
    executor_group.set_weights(module, weights)
    executor_group.weights_have_moved(module)
    begin_anew(module, executor_group.parameters(module))


def take_snapshot_and_rate(module, gradient, *arguments):
    """Take a snapshot, and let the BarzilaiBorwein of the module set the rate there.

    Parameters
    ----------
    module : SVRGModule
        Module being trained, whose optimizer has such a rule.
    gradient : MeanGradient
        Its gradient.
    *arguments
        `source`, `reduction`, `done` and `at_of` of ``SVRG.take_snapshot``.
    """
    svrg, rule = module._svrg, step_size_rule_of(module)
    ways_back, epoch = rule.ways_back, svrg.epoch or 0
    rate.take_snapshot(svrg, module, rule, gradient, functools.partial(_go_to, module), *arguments)
    if rule.ways_back > ways_back:
        module.logger.info('Epoch[%d] The learning rate was too large: back to the best snapshot',
                           epoch)
    module.logger.info('Epoch[%d] Learning rate=%g', epoch, rule(None))

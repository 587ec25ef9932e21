"""Checks of the calls of an SVRGModule."""

import numbers

from .._warn_once import warn
from ..core.exclusions import check_together
from ..kvstore.horovod import is_wrapped
from ..kvstore.kinds import features_of
from ..rate.optimizer import features_of_optimizer
from ..svrg_optimizer import check_rates, class_name_and_arguments

_DEFAULTS = 'sgd', {'learning_rate': 0.01}  # of Module.init_optimizer and of fit


def check_has_parameters(module, method, and_optimizer=False):
    """Raise an AssertionError, as Module does without words, if a method comes too early."""
    if not (module.binded and module.params_initialized and (
            module.optimizer_initialized or not and_optimizer)):
        raise AssertionError(
            '%s needs a module that is bound and has parameters%s: call fit before it, or bind '
            'and init_params or set_params%s' % (method, *(
                (' and an optimizer', ', and init_optimizer') if and_optimizer else ('', ''))))


def warn_of_ignored(module, optimizer, optimizer_params):
    """Warn of arguments that the optimizer, which is there already, does not have."""
    optimizer_params = dict(optimizer_params or ())
    if optimizer_params == _DEFAULTS[1]:  # maybe they are left out
        optimizer_params = {}
        if optimizer == _DEFAULTS[0]:
            return
    klass, _, given = class_name_and_arguments(optimizer, optimizer_params)
    installed, _, has = class_name_and_arguments(module._optimizer, {})
    if klass is not installed or not isinstance(optimizer, str) and has is not given:
        ignored = ['optimizer=%r' % (optimizer,)]
    else:
        ignored = ['%s=%r' % (name, value) for name, value in given.items()
                   if isinstance(optimizer, str) and isinstance(value, numbers.Real)
                   and value != has.get('lr' if name == 'learning_rate' else name, value)]
    if ignored:
        warn('%s is ignored, since the module has its optimizer already: for another one call '
             'init_optimizer(..., force_init=True) before fit' % ' and '.join(ignored))


def check_lender(module, lender, is_ours):
    """Raise an error if a module cannot use the optimizer of another one, maybe a plain Module."""
    assert lender.optimizer_initialized
    optimizer, lent = lender._optimizer, lender._proximal if is_ours else None
    has_same_keys = lender._update_on_kvstore or lender._param_names == module._param_names
    check_together({
        'a borrowed optimizer': lent is not module._proximal,
        'an optimizer of Horovod': is_wrapped(optimizer),
        'a plain shared_module': not is_ours and lender,
        'other parameters': not has_same_keys and lender._param_names,
        'proximal': module._proximal.by_name or lent and lent.by_name},
        module._svrg.settings.features(), features_of(lender._kvstore, lender._update_on_kvstore),
        features_of_optimizer(optimizer, {}))
    check_rates(optimizer)

"""Names that scripts for the SVRGModule of mxnet.contrib call, override and reach into."""

from ..core.correction import correct
from ..core.full_gradient import FullGradient, share_out
from ..kvstore.workers import exchange
from .install import wrapped_optimizer


class ContribNames:
    """These names, of an SVRGModule. Its steps and passes call only what a subclass overrides."""

    _ctx_len = property(lambda module: len(module._context))
    _mod_aux = property(lambda module: module._svrg.reference.executors.module)

    @property
    def _param_dict(self):
        full_gradient = self._svrg.snapshot.full_gradient
        if not full_gradient:
            return None
        full_gradient.may_be_written = True
        return full_gradient.shares

    @_param_dict.setter
    def _param_dict(self, shares):
        full_gradient = FullGradient(self._svrg.reference.new_sum())
        full_gradient.shares, full_gradient.may_be_written = shares, True
        full_gradient.shares_differ = True
        self._svrg.snapshot.replace(full_gradient)

    def _create_optimizer(self, optimizer, default_opt, kvstore, optimizer_params):
        """Return the wrapper, named `optimizer`, of `default_opt`, which steps the weights.

        `default_opt` is a name or an Optimizer.
        """
        return wrapped_optimizer(self, default_opt, kvstore, optimizer_params)

    def _svrg_grads_update_rule(self, g_curr_batch_curr_weight, g_curr_batch_special_weight,
                                g_special_weight_all_batch):
        """Return the first argument, overwritten with it minus the second plus the third.

        They are NDArrays of one parameter on one device: the gradient of the batch at the
        current weights, the gradient at the snapshot times α, and the device's share of the
        full gradient times α, scaled to the rows of the batch; float32 for float16.
        """
        correct(g_curr_batch_curr_weight, g_curr_batch_special_weight, g_special_weight_all_batch)
        return g_curr_batch_curr_weight

    # A pass does not call these two.

    def _accumulate_kvstore(self, key, value):
        """Sum one parameter's full gradient, a list of one NDArray a device, in the KVStore."""
        exchange(self._kvstore, self._keys, self._snapshot.full_gradient.shares,
                 {key: value})

    def _allocate_gradients(self, key, value):
        """Give each device its share of a full gradient that all devices have whole."""
        share_out(self._svrg.snapshot.full_gradient.shares, key, value)

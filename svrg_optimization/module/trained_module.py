"""A Module's TrainedModel: what its optimizer does with a gradient."""

from ..core.arrays import set_all
from ..core.front_end import TrainedModel
from ..core.optimality import MeanGradient
from ..kvstore.kinds import is_synchronous
from ..rate.optimizer import moves_weights
from . import executor_group
from .optimizer_states import reset_states
from .workers import kvstore_of_weights


class TrainedModule(TrainedModel):
    """A Module with its optimizer. Of several buckets it is the default one."""

    @property
    def moves(self):
        """Whether the optimizer is 'newton_cg', which makes no steps."""
        return self.model.optimizer_initialized and moves_weights(self.model._optimizer)

    def mean_gradient(self):
        """Return the gradient that the optimizer steps along."""
        module, fixed_gammas = self.model, self.model._svrg.reference.fixed_gammas
        names = [name for name in module._trainable if name not in fixed_gammas]
        if not module.optimizer_initialized:
            return MeanGradient(lambda _: 1., dict.fromkeys(names, 1.), dict.fromkeys(names, 0.))
        optimizer, kvstore = module._optimizer, module._kvstore
        scale, = self.rounded_like_a_step([optimizer.rescale_grad])
        scale *= kvstore.num_workers if is_synchronous(kvstore) else 1
        keys = {name: name for name in names}
        if kvstore_of_weights(module) is None:  # the optimizer is called with numbers
            keys.update((name, number) for number, name in optimizer.idx2name.items())
        multipliers = {name: optimizer.lr_mult.get(keys[name], optimizer.lr_mult.get(name, 1.))
                       for name in names}
        updated = [name for name in names if multipliers[name]]
        decays = dict(zip(updated, self.rounded_like_a_step(
            optimizer._get_wds([keys[name] for name in updated]))))
        return MeanGradient(lambda _: scale, {name: multipliers[name] for name in updated}, decays,
                            optimizer, module._proximal.by_name)

    def go_to(self, weights):
        """Set the module to weights; the optimizer begins anew there."""
        set_all(executor_group.values(self.model), weights)
        executor_group.mark_host_copies_stale(self.model)
        reset_states(self.model)

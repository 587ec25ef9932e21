"""A Module's TrainedModel: what its optimizer does with a gradient."""

from ..core.arrays import set_all
from ..core.front_end import TrainedModel
from ..core.optimality import MeanGradient, decays_of
from ..kvstore.kinds import is_synchronous
from ..rate.svrg_lbfgs import rule_of
from . import executor_group
from .optimizer_states import reset_states
from .workers import kvstore_of_weights


class TrainedModule(TrainedModel):
    """A Module that is trained; of several buckets the default one."""

    @property
    def rule(self):
        """The SnapshotRule of the optimizer, None without."""
        return rule_of(self.model._optimizer) if self.model.optimizer_initialized else None

    def mean_gradient(self):
        """Return the gradient that the optimizer steps along."""
        module, set_in_pass = self.model, self.model._svrg.reference.set_in_pass
        names = [name for name in module._trainable if name not in set_in_pass]
        if not module.optimizer_initialized:
            return MeanGradient(lambda _: 1., dict.fromkeys(names, 1.), dict.fromkeys(names, 0.))
        optimizer, kvstore = module._optimizer, module._kvstore
        scale, = self.as_applied([optimizer.rescale_grad])
        scale *= kvstore.num_workers if is_synchronous(kvstore) else 1
        keys = {name: name for name in names}
        if kvstore_of_weights(module) is None:  # the optimizer is called with numbers
            keys.update((name, number) for number, name in optimizer.idx2name.items())
        multipliers = {name: optimizer.lr_mult.get(keys[name], optimizer.lr_mult.get(name, 1.))
                       for name in names}
        updated = [name for name in names if multipliers[name]]
        decays = dict(zip(updated, self.as_applied(
            decays_of(optimizer, [keys[name] for name in updated]))))
        return MeanGradient(lambda _: scale, {name: multipliers[name] for name in updated}, decays,
                            optimizer, module._proximal.by_name)

    def go_to(self, weights):
        """Set the module to weights; the optimizer begins anew there."""
        set_all(executor_group.values(self.model), weights)
        executor_group.mark_host_copies_stale(self.model)
        reset_states(self.model, executor_group.parameters(self.model))

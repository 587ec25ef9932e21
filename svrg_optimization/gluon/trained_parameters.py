"""Gluon's parameters as the rate and the gradient's norm see them: what Trainer does with them."""

from ..core.arrays import set_all
from ..core.front_end import TrainedModel
from ..core.optimality import MeanGradient
from ..rate.optimizer import moves_weights
from .numpy_arrays import as_nd


class TrainedParameters(TrainedModel):
    """Parameters that an SVRGTrainer trains."""

    @property
    def moves(self):
        """Whether the optimizer is 'newton_cg', which makes no steps."""
        return moves_weights(self.model._optimizer)

    def mean_gradient(self):
        """Return the gradient that a step follows, whatever the size of its batch."""
        trainer = self.model
        updated = [param for param in trainer._reference.trained() if param.lr_mult]
        decays = dict(zip(trainer._params, self.rounded_like_a_step(
            trainer._optimizer._get_wds(range(len(trainer._params))))))
        scale = trainer._scale * trainer._loss_scale
        return MeanGradient(lambda full_gradient: self.rounded_like_a_step(
                                [scale / full_gradient.batch_size])[0],
                            {param.name: param.lr_mult for param in updated},
                            {param.name: 0. if param.name in trainer._never_used else decays[param]
                             for param in updated},
                            trainer._optimizer, trainer._proximal.by_name)

    def go_to(self, weights):
        """Set the parameters to weights; the optimizer begins anew there."""
        set_all({param.name: as_nd(param._data) for param in self.model._params}, weights)
        for updater in self.model._updaters:
            updater.states.clear()
            updater.states_synced.clear()

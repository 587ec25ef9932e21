"""A user's script for a type checker, which `make lint` runs; mistakes in it must be found."""

from typing import Any, Optional

from svrg_optimization import (
    EarlyStopping,
    LinearDecay,
    SVRGBucketingModule,
    SVRGModule,
    SVRGTrainer,
)
from svrg_optimization.diagnostics import gradient_variance
from svrg_optimization.proximal import L1, Box, GroupLasso


class OwnOperator:
    """An operator that is no subclass of one of the package."""

    def prox(self, weight: Any, step_size: float) -> None:
        """Change nothing."""

    def value(self, weight: Any) -> float:
        """Return 0."""
        return 0.


def train_module(symbol: Any, data: Any) -> Optional[float]:
    """Train by Module."""
    module = SVRGModule(symbol, update_freq=2, alpha=LinearDecay(0.5, 100), tol=1e-5,
                        proximal={'fc_weight': OwnOperator(), 'fc_bias': Box(0)})
    with EarlyStopping(module, 'min', patience=3) as stopping:
        module.fit(data, num_epoch=10, eval_end_callback=stopping)
    ratio: float = gradient_variance(module, data).svrg
    is_done: bool = module.has_converged
    module.tol = 1e-4
    print(ratio, is_done, module.update_freq + 1)
    SVRGModule(symbol, update_freq='2')  # type: ignore[arg-type]
    SVRGModule(symbol, proximal=3)  # type: ignore[arg-type]
    module.fit(data, num_epochs=3)  # type: ignore[call-arg]
    module.fit(num_epoch=3)  # type: ignore[call-arg]
    module.fit(data, num_epoch='3')  # type: ignore[arg-type]
    buckets = SVRGBucketingModule(lambda key: (symbol, ('data',), ('label',)), 1)
    buckets.fit(data, None, 'acc', num_epoch=3)
    buckets.fit(data, num_epochs=3)  # type: ignore[call-arg]
    L1('0.1')  # type: ignore[arg-type]
    EarlyStopping(module, 'min', patience='5')  # type: ignore[arg-type]
    return module.result.distance  # type: ignore[union-attr]


def train_trainer(net: Any, loss: Any, data: Any) -> bool:
    """Train by Gluon."""
    trainer = SVRGTrainer(net.collect_params(), 'sgd', objective=lambda *batch: loss(net(*batch)),
                          proximal=GroupLasso(0.1, axis=1))
    for batches in trainer.epochs(data, 10, update_freq=2):
        for batch in batches:
            trainer.backward(*batch)
            trainer.step(len(batch[0]))
    trainer.epochs(data, num_epoch='10')  # type: ignore[arg-type]
    SVRGTrainer(net.collect_params(), 'sgd', objective=3)  # type: ignore[arg-type]
    norm: float = trainer.gradient_norm  # type: ignore[assignment]
    return norm < 1

"""SVRGTrainer, Gluon's Trainer with SVRG gradients, and what it needs in Gluon's Estimator."""

from .estimator import SnapshotHandler, SVRGBatchProcessor
from .trainer import SVRGTrainer

__all__ = ['SVRGTrainer', 'SVRGBatchProcessor', 'SnapshotHandler']

"""SVRGTrainer, Gluon's Trainer with SVRG gradients."""

from .trainer import SVRGTrainer

__all__ = ['SVRGTrainer']

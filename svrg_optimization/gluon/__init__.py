"""SVRGTrainer, Gluon's Trainer with stochastic variance reduced gradients."""

from .trainer import SVRGTrainer

__all__ = ['SVRGTrainer']

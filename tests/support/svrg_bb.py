"""SVRG with Barzilai-Borwein steps in float64, and trainings to compare with it."""

import numpy as np


class SvrgBB:
    """SVRG-BB of Tan et al., Algorithm 1; where asked for four times its rate, at most 1 / L.

    With momentum the rate of the paper is multiplied by 1 - momentum.
    """

    def __init__(self, problem, rate, wd=0., bounded=True, batch_size=10, svrg=None, momentum=0.,
                 nesterov=False):
        self.svrg = svrg or problem.svrg(learning_rate=lambda _: self.rate, wd=wd,
                                         momentum=momentum, nesterov=nesterov)
        self.momentum = momentum
        self.rate, self.wd, self.bounded, self.batch_size = rate, wd, bounded, batch_size
        self.curvature, self.previous, self.steps = 0., None, 0
        self.rates = []

    def take_snapshot(self):
        self.svrg.take_snapshot()
        weights = self.svrg.snapshot
        full = {name: value / self.batch_size + self.wd * weights[name] * name.endswith('weight')
                for name, value in self.svrg.full_gradient.items()}
        now = [np.concatenate([part[name].ravel() for name in sorted(full)])
               for part in (weights, full)]
        if self.previous is not None:
            moved, changed = (new - old for new, old in zip(now, self.previous))
            if self.steps and moved @ changed > 0:
                self.rate = (1 - self.momentum) * moved @ moved / (moved @ changed) / self.steps
                self.curvature = max(0.98 * self.curvature,
                                     changed @ changed / (moved @ changed))
                if self.bounded:
                    self.rate = min(4 * self.rate, 1 / self.curvature)
        self.previous, self.steps = now, 0
        self.rates.append(self.rate)

    def step(self, rows):
        self.svrg.step(rows)
        self.steps += 1

    def fit(self, begin, end, update_freq, batches):
        for epoch in range(begin, end):
            if epoch % update_freq == 0:
                self.take_snapshot()
            for rows in batches:
                self.step(rows)
        return self.svrg.weights


def fit(problem, module, rule, begin=0, end=5, rate=0.05, wd=0., **kwargs):
    params = {'learning_rate': rate, 'wd': wd, 'lr_scheduler': rule}
    module.fit(problem.iterator(), eval_metric='mse', begin_epoch=begin, num_epoch=end,
               arg_params=problem.arg_params(), optimizer_params=params, **kwargs)
    return module

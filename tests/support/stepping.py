"""What trains and its float64 twin, stepped side by side."""

import numpy as np

import oracle


class SideBySide:
    """What trains, with a `problem`, and `svrg` in float64."""

    def epoch(self):
        for batch, rows in self.batches():
            self.backward(batch)
            self.step(rows)

    def check_full_gradient(self):
        found = self.full_gradient()
        for name, value in self.svrg.full_gradient.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


class Training(SideBySide):
    """A module and its float64 twin."""

    def __init__(self, problem, optimizer='sgd', settings=(('learning_rate', 0.1),), **kwargs):
        self.problem = problem
        self.module = self.trains = problem.bound(**kwargs)
        self.module.init_optimizer(optimizer=optimizer, optimizer_params=settings)
        self.svrg = problem.svrg(**dict(settings))
        self.rows = oracle.batches_of(len(problem.features), 10)

    def batches(self):
        return zip(self.problem.iterator(), self.rows)

    def snapshot(self):
        self.module.update_full_grads(self.problem.iterator())
        self.svrg.take_snapshot()

    def backward(self, batch):
        self.module.forward_backward(batch)

    def step(self, rows):
        self.module.update()
        self.svrg.step(rows)

    def check(self):
        self.problem.assert_weights(self.module, self.svrg.weights)

    def full_gradient(self):
        shares = self.module._param_dict
        return {name: sum(share[name].asnumpy() for share in shares) for name in shares[0]}

    def gradients(self):
        group = self.module._exec_group
        return {name: sum(array.asnumpy() for array in arrays)
                for name, arrays in zip(group.param_names, group.grad_arrays)}

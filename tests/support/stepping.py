"""A module and its float64 twin, stepped side by side."""

import oracle


class Training:
    """A module and its float64 twin, stepped side by side."""

    def __init__(self, problem, optimizer_params=(('learning_rate', 0.1),), **kwargs):
        self.problem = problem
        self.module = problem.bound(**kwargs)
        self.module.init_optimizer(optimizer_params=optimizer_params)
        self.svrg = problem.svrg(**dict(optimizer_params))
        self.rows = oracle.batches_of(len(problem.features), 10)

    def batches(self):
        return zip(self.problem.iterator(), self.rows)

    def snapshot(self):
        self.module.update_full_grads(self.problem.iterator())
        self.svrg.take_snapshot()

    def epoch(self):
        for batch, rows in self.batches():
            self.module.forward_backward(batch)
            self.module.update()
            self.svrg.step(rows)

    def check(self):
        self.problem.assert_weights(self.module, self.svrg.weights)


def gradients_of(module):
    return {name: sum(array.asnumpy() for array in arrays) for name, arrays in zip(
        module._exec_group.param_names, module._exec_group.grad_arrays)}

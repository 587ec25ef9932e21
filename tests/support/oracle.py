"""SVRG in float64 NumPy: what the tests compare with.

Nothing here imports the package or MXNet. A network is a function from
weights and rows to the gradients summed over the rows.
"""

import numpy as np


def linear_regression(weights, features, targets):
    """Half the squared error of ``features @ weight.T + bias``, one output."""
    residual = features @ weights['fc_weight'].T + weights['fc_bias'] - targets.reshape(-1, 1)
    return {'fc_weight': residual.T @ features, 'fc_bias': residual.sum(axis=0)}


def softmax_regression(weights, features, targets):
    """Cross-entropy of a softmax over one linear layer."""
    error = softmax(features @ weights['fc_weight'].T + weights['fc_bias'])
    error[np.arange(len(targets)), targets.astype(int)] -= 1
    return {'fc_weight': error.T @ features, 'fc_bias': error.sum(axis=0)}


def perceptron(weights, features, targets, masks=(1, 1)):
    """Cross-entropy of a softmax over a hidden layer of tanh units; masks drop inputs of layers."""
    features = features * masks[0]
    hidden = np.tanh(features @ weights['hidden_weight'].T + weights['hidden_bias'])
    second = hidden * masks[1]
    error = softmax(second @ weights['fc_weight'].T + weights['fc_bias'])
    error[np.arange(len(targets)), targets.astype(int)] -= 1
    back = (error @ weights['fc_weight']) * masks[1] * (1 - hidden ** 2)
    return {'fc_weight': error.T @ second, 'fc_bias': error.sum(axis=0),
            'hidden_weight': back.T @ features, 'hidden_bias': back.sum(axis=0)}


def loss(network, weights, features, targets):
    """Return the loss, summed over the rows, whose gradients are those of a network."""
    if network is perceptron:
        features = np.tanh(features @ weights['hidden_weight'].T + weights['hidden_bias'])
    weight = weights['w'].T if 'w' in weights else weights['fc_weight']
    scores = features @ weight.T + weights['fc_bias']
    if scores.shape[1] == 1:
        return ((scores[:, 0] - targets) ** 2).sum() / 2
    return -np.log(softmax(scores)[np.arange(len(targets)), targets.astype(int)]).sum()


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def batches_of(rows, batch_size):
    """Row numbers of each batch of an epoch, the last one filled up from the first rows."""
    return [np.arange(start, start + batch_size) % rows for start in range(0, rows, batch_size)]


def soft_threshold(strength):
    """Return the proximal operator of the L1 norm: it takes a value and the learning rate."""
    return lambda value, rate: np.sign(value) * np.maximum(np.abs(value) - rate * strength, 0)


def block_threshold(strength, axis):
    """Return the proximal operator of the norms of a matrix's rows (axis 0) or columns (1)."""
    def prox(value, rate):
        norms = np.sqrt((value ** 2).sum(axis=1 - axis, keepdims=True))
        return value * np.maximum(norms - rate * strength, 0) / np.where(norms > 0, norms, 1)
    return prox


def box(low, high):
    """Return the proximal operator of bounds."""
    return lambda value, _: np.clip(value, low, high)


def proximal_minimum(gradient, prox, start, step, count=5000):
    """Return a minimum by accelerated proximal steps with restarts."""
    at, ahead, speed = start, start, 1.
    for _ in range(count):
        former, at = at, prox(ahead - step * gradient(ahead), step)
        before, speed = speed, (1 + np.sqrt(1 + 4 * speed ** 2)) / 2
        if ((ahead - at) * (at - former) / step).sum() > 0:
            speed = 1.
        ahead = at + (before - 1) / speed * (at - former)
    return at


class Sgd:
    """SGD with momentum, Nesterov's or not, and weight decay, as MXNet defines them.

    After its step a weight is given to its function in `proximal`, with its learning rate.
    """

    def __init__(self, learning_rate, momentum=0.0, wd=0.0, lr_mult=(), decayed=('weight',),
                 rescale=1.0, proximal=(), nesterov=False):
        self.learning_rate = learning_rate if callable(learning_rate) else lambda _: learning_rate
        self.momentum, self.wd, self.rescale = momentum, wd, rescale
        self.lr_mult, self.decayed = dict(lr_mult), decayed
        self.proximal, self.nesterov = dict(proximal), nesterov
        self.velocity, self.updates = {}, 0

    def step(self, weights, gradients):
        self.updates += 1
        rate = self.learning_rate(self.updates)
        for name, gradient in gradients.items():
            wd = self.wd if name.endswith(tuple(self.decayed)) else 0.0
            descent = self.rescale * gradient + wd * weights[name]
            own_rate = rate * self.lr_mult.get(name, 1.0)
            self.velocity[name] = (self.momentum * self.velocity.get(name, 0.0)
                                   + own_rate * descent)
            if self.nesterov:
                weights[name] = weights[name] - (self.momentum * self.velocity[name]
                                                 + own_rate * descent)
            else:
                weights[name] = weights[name] - self.velocity[name]
            if name in self.proximal:
                weights[name] = self.proximal[name](weights[name], own_rate)


class Adam:
    """Adam as MXNet defines it, which adds the weight decay to the gradient."""

    def __init__(self, learning_rate, wd=0.0, rescale=1.0):
        self.learning_rate, self.wd, self.rescale = learning_rate, wd, rescale
        self.moments, self.updates = {}, 0

    def step(self, weights, gradients):
        self.updates += 1
        rate = self.learning_rate * np.sqrt(1 - 0.999 ** self.updates) / (1 - 0.9 ** self.updates)
        for name, gradient in gradients.items():
            gradient = self.rescale * gradient + (
                self.wd if name.endswith('weight') else 0.0) * weights[name]
            first, second = self.moments.get(name, (0.0, 0.0))
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient ** 2
            self.moments[name] = first, second
            weights[name] = weights[name] - rate * first / (np.sqrt(second) + 1e-8)


class Svrg:
    """Johnson and Zhang's algorithm over a fixed order of batches; alpha(t) is Yin et al.'s."""

    def __init__(self, network, weights, features, targets, batch_size, optimizer, fixed=(),
                 alpha=lambda _: 1):
        self.network, self.optimizer, self.fixed = network, optimizer, fixed
        self.alpha = alpha
        self.weights = {name: np.array(value, np.float64) for name, value in weights.items()}
        self.features = np.asarray(features, np.float64)
        self.targets = np.asarray(targets, np.float64)
        self.batch_size = batch_size
        self.snapshot = self.full_gradient = None

    def gradients(self, weights, rows):
        gradients = self.network(weights, self.features[rows], self.targets[rows])
        return {name: value for name, value in gradients.items() if name not in self.fixed}

    def take_snapshot(self, rows=None):
        """Take a snapshot, with the mean gradient of all rows or of some."""
        rows = np.arange(len(self.features)) if rows is None else rows
        self.snapshot = dict(self.weights)
        self.full_gradient = {name: self.batch_size / len(rows) * value for name, value
                              in self.gradients(self.snapshot, rows).items()}

    def step(self, rows, batch_size=None):
        """Step on some rows; `batch_size` is that of the padded batch which they were cut from."""
        gradients = self.gradients(self.weights, rows)
        if self.snapshot is not None:
            at_snapshot = self.gradients(self.snapshot, rows)
            alpha = self.alpha(self.optimizer.updates)
            units = (batch_size or len(rows)) / self.batch_size
            gradients = {name: gradients[name] - alpha * (at_snapshot[name]
                                                          - units * self.full_gradient[name])
                         for name in gradients}
        self.optimizer.step(self.weights, gradients)

    def fit(self, num_epoch, update_freq, begin_epoch=0, batches=None, samples=None):
        """Train on such batches of rows, by default on those of all rows.

        Each snapshot is over the rows of the next one of the samples, if there are some.
        """
        batches = batches or batches_of(len(self.features), self.batch_size)
        for epoch in range(begin_epoch, num_epoch):
            if epoch % update_freq == 0 or self.snapshot is None:
                self.take_snapshot(samples and next(samples))
            for rows in batches:
                self.step(rows)
        return self.weights

"""SVRG with jumps of L-BFGS in float64, by its two loops."""

import numpy as np

import oracle

EPS = 2.**-52


class SvrgLbfgs:
    """SVRG on the diagonal of the metric, with rollbacks, and jumps with the last sixty pairs.

    `layer` is the name of the weight on the features, whose bias is in the metric; without one
    the metric is 1. `multipliers` are those of the rate; gradients are `scale` times the mean's.
    The decay in the metric is times gamma, and follows it when that has changed twofold. Gamma is
    the inverse of the largest curvature of the last ten pairs.
    """

    def __init__(self, problem, momentum=0.7, wd=0., multipliers=(), layer='fc', batch_size=10,
                 decayed=('weight',), fixed=(), pairs=60, scale=1., jumps=20):
        svrg = problem.svrg(batch_size, fixed)
        self.network, self.features, self.targets = svrg.network, svrg.features, svrg.targets
        self.weights = svrg.weights
        self.names = sorted((name for name in svrg.weights if name not in fixed), reverse=True)
        self.momentum, self.wd, self.batch_size, self.scale = momentum, wd, batch_size, scale
        self.decayed, self.layer, self.most = tuple(decayed), layer, pairs
        self.multiplier = self.vector({name: np.full(value.shape, dict(multipliers).get(name, 1.))
                                       for name, value in svrg.weights.items()})
        self.pairs, self.gamma, self.slowdown, self.rollbacks, self.taken = [], None, 1., 0, 0
        self.previous = self.inverse = None
        self.steps, self.velocity, self.jumps = 0, 0., jumps
        self.cost, self.earned, self.length = 3, 0., 0.  # of the steps before a snapshot
        self.largest = 0.

    def vector(self, values):
        return np.concatenate([np.ravel(values[name]) for name in self.names])

    def by_name(self, vector):
        weights, begin = dict(self.weights), 0
        for name in self.names:
            size = self.weights[name].size
            weights[name] = vector[begin:begin + size].reshape(self.weights[name].shape)
            begin += size
        return weights

    def places(self):
        """Return where in a vector the weight and the bias of the layer are; -1 is nowhere."""
        found = self.by_name(np.arange(len(self.multiplier)))
        return [found[name] if name in self.names else np.full(self.weights[name].shape, -1)
                for name in (self.layer + '_weight', self.layer + '_bias')]

    @property
    def decay(self):
        return self.wd * self.vector({name: np.full(value.shape, name.endswith(self.decayed) * 1.)
                                      for name, value in self.weights.items()})

    def gradient(self, vector, rows):
        """Return the gradient of the mean objective over some rows, with weight decay."""
        found = self.network(self.by_name(vector), self.features[rows], self.targets[rows])
        return self.scale * self.vector(found) / len(rows) + self.decay * vector

    def objective(self, vector, rows):
        loss = oracle.loss(self.network, self.by_name(vector), self.features[rows],
                           self.targets[rows])
        return self.scale * loss / len(rows) + self.decay @ vector ** 2 / 2

    def metric(self, rows, gamma):
        """Return the metric as a matrix of all parameters."""
        matrix = np.eye(len(self.multiplier))
        if self.layer:
            inputs = np.column_stack([self.features[rows], np.ones(len(rows))])
            for row, last in zip(*self.places()):
                # Parameters with another multiplier, or fixed ones, are not in it.
                chosen = [*row, last] if last >= 0 and (
                    self.multiplier[last] == self.multiplier[row[0]]) else row
                moment = (inputs.T @ inputs / len(rows))[:len(chosen), :len(chosen)]
                matrix[np.ix_(chosen, chosen)] = moment + np.diag(gamma * self.decay[chosen])
        return matrix

    def diagonal(self):
        """Return the metric without the covariances of the features, which steps have."""
        matrix = self.matrix.copy()
        if self.layer:
            for row, last in zip(*self.places()):
                block = matrix[np.ix_(row, row)]
                is_joined = last >= 0 and matrix[row[0], last] != 0
                means = np.outer(matrix[row, last], matrix[last, row]) / matrix[last, last] if (
                    is_joined) else 0 * block
                matrix[np.ix_(row, row)] = np.diag(np.diag(block - means)) + means
        return matrix

    def unseen(self, at):
        """Return what all classes have in common, which a softmax does not see."""
        result = {name: 0 * value for name, value in self.weights.items()}
        if self.network is oracle.softmax_regression and 'fc_weight' in self.names:
            weights = self.by_name(at)
            result['fc_weight'] += weights['fc_weight'].mean(axis=0)
            places = self.by_name(self.multiplier)
            if 'fc_bias' in self.names and (
                    places['fc_bias'] == places['fc_weight'][:, 0]).all():
                result['fc_bias'] += weights['fc_bias'].mean()
        return self.vector(result)

    def direction(self, gradient, at):
        """Return the way by L-BFGS, but of what a softmax does not see all that has a decay."""
        found = self.by_two_loops(gradient - self.unseen(gradient))
        unseen = self.by_name(self.unseen(at))
        if not self.by_name(self.decay).get('fc_bias', np.zeros(1)).any():
            unseen['fc_bias'] = 0 * unseen['fc_bias']
            if self.unseen(np.ones_like(at)).sum() > self.weights['fc_weight'].size:  # joined
                unseen['fc_bias'] -= unseen['fc_weight'] @ self.features.mean(axis=0)
        return found - self.unseen(found) + self.vector(unseen) * (self.wd > 0)

    def by_two_loops(self, gradient):
        """Return L-BFGS by its two loops, of the weights divided by the root of the multipliers."""
        root = np.sqrt(self.multiplier)
        q, found = root * gradient, []
        for s, y in reversed(self.pairs):
            found.append(s @ q / (s @ y))
            q = q - found[-1] * y
        q = self.gamma * self.inverse @ q
        for (s, y), part in zip(self.pairs, reversed(found)):
            q = q + s * (part - y @ q / (s @ y))
        return q * root

    def size(self, move):
        """Return the length of a move in the metric."""
        move = move / np.sqrt(self.multiplier)
        return np.sqrt(move @ self.matrix @ move)

    def learn(self, move, change, has_fallen=False):
        root = np.sqrt(self.multiplier)
        s, y = (move - self.unseen(move)) / root, (change - self.unseen(change)) * root
        flat = np.sqrt(EPS * (s @ self.matrix @ s) * (y @ self.inverse @ y))
        if s @ y > flat:
            self.pairs = [*self.pairs, (s, y)][-self.most:]
            self.gamma = self.shortest()
        elif has_fallen and abs(s @ y) <= flat:
            self.gamma *= 10

    def shortest(self):
        """Return the inverse of the largest curvature of the last ten pairs."""
        return min(s @ y / (y @ self.inverse @ y) for s, y in self.pairs[-10:])

    def measure(self, rows, gamma):
        self.of_metric, self.matrix = gamma, self.metric(rows, gamma)
        self.inverse = np.linalg.inv(self.matrix)
        self.of_steps = np.linalg.inv(self.diagonal())

    def take_snapshot(self, batches):
        """Take a snapshot, and make jumps; after one that failed one half as far.

        They end where they have taken as many passes as the steps before, and earn less in each.
        """
        steps, former = self.steps, self.length
        self.measure_gradient(batches)
        if steps:
            self.cost = 1 + 2 * steps / len(batches)  # the snapshot, and two gradients of a batch
            self.earned = np.log(former / self.length) / self.cost
        reach, made, first = 1., 0, self.length
        while reach and made < self.jumps and (
                made < self.cost or np.log(first / self.length) >= made * self.earned):
            at, full, _ = self.previous
            self.weights = self.by_name(at - reach * self.direction(full, at))
            self.velocity = 0.
            has_failed, made = self.measure_gradient(batches, has_jumped=True), made + 1
            reach = 1. if not has_failed else 0.5 if reach == 1 else 0.

    def measure_gradient(self, batches, has_jumped=False):
        """Learn from the weights; go back if the objective is larger, and tell so."""
        rows = np.unique(np.concatenate(batches))
        batches = [np.setdiff1d(batch, np.concatenate([[], *batches[:number]])).astype(int)
                   for number, batch in enumerate(batches)]  # the last one is filled up
        at, generator = self.vector(self.weights), np.random.RandomState(self.taken)
        full, objective = self.gradient(at, rows), self.objective(at, rows)
        chosen = [number for number in range(len(batches)) if generator.randint(number + 1) == 0]
        batch = batches[chosen[-1]]
        self.taken, self.largest = self.taken + 1, max(self.largest, abs(objective))
        has_failed = False
        if self.steps or has_jumped:
            before, slope, least = self.previous
            move, rise = at - before, objective - least
            if abs(rise) <= 10 * EPS * self.largest:
                rise = (full + slope) @ move / 2
            has_failed = rise > 0 or has_jumped and rise == 0
            if not has_jumped:
                self.slowdown = 2 * self.slowdown if has_failed else max(1., self.slowdown / 2)
                self.rollbacks += has_failed
            change = full - slope
            if has_failed:
                at, full, objective = self.previous
                self.velocity = 0.
            if has_failed and rise > 10 * abs(slope @ move):
                self.pairs, self.gamma = [], self.gamma / 10
            else:
                self.learn(move, change, rise < 0)
        else:
            self.measure(rows, 1 / self.scale)
            way = self.inverse @ (self.multiplier * full)
            way = way / np.sqrt(full @ way)
            of_batch = self.gradient(at, batch)
            self.learn(way, of_batch - self.gradient(at - way, batch))
        if self.decay.any() and max(self.gamma / self.of_metric, self.of_metric / self.gamma) > 2:
            self.measure(rows, self.gamma)
            self.gamma = self.shortest() if self.pairs else self.gamma
        self.between = self.steps or getattr(self, 'between', 2 * len(batches))
        self.rate = self.gamma / self.slowdown * min(
            4 * (1 - self.momentum) / self.between,
            (1 + self.momentum) / (1 + 2 * self.momentum) / len(batches))
        self.weights, self.previous, self.steps = self.by_name(at), (at, full, objective), 0
        self.length = self.size(self.direction(full, at))
        return has_failed

    def step(self, rows):
        at, (before, full, _) = self.vector(self.weights), self.previous
        sums = [len(rows) * (self.gradient(point, rows) - self.decay * point)
                for point in (at, before)]
        gradient = self.decay * at + (sums[0] - sums[1] + len(rows) * (
            full - self.decay * before)) / self.batch_size
        direction = self.multiplier * (self.of_steps @ gradient)
        self.velocity = self.momentum * self.velocity + self.rate * direction
        self.weights = self.by_name(at - self.rate * direction - self.momentum * self.velocity)
        self.steps += 1

    def fit(self, epochs, update_freq, batches):
        """Train, and take a last snapshot."""
        for epoch in range(epochs):
            if epoch % update_freq == 0:
                self.take_snapshot(batches)
            for rows in batches:
                self.step(rows)
        self.take_snapshot(batches)
        return self.weights

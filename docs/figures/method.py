"""SVRG drawn: a pass at the snapshot, steps along g from there, and the next snapshot."""

import numpy as np
from common import NEUTRAL, SGD, SVRG, arguments, pyplot, save
from matplotlib.patches import Rectangle

RATE, BATCH_SIZE, EPOCHS, SHOWN = 0.16, 4, 2, 3
LENGTH = 0.6  # of the arrows, times the gradients
OFFSETS = (10, -6), (-80, 0), (-30, -16), (0, 8)  # of their labels


class Squares:
    """Least squares of two weights, with few rows."""

    def __init__(self, seed=3):
        rng = np.random.RandomState(seed)
        self.rows = rng.normal(size=(24, 2))
        self.targets = self.rows @ (2.6, 1.0) + 1.5 * rng.normal(size=24)

    def gradient(self, weight, batch=slice(None)):
        rows = self.rows[batch]
        return rows.T @ (rows @ weight - self.targets[batch]) / len(rows)

    def loss(self, weights):
        return ((weights @ self.rows.T - self.targets) ** 2).mean(axis=-1) / 2


def arrow(axes, start, end, color, label, offset):
    axes.annotate('', end, start, arrowprops={
        'arrowstyle': '-|>', 'color': color, 'linewidth': 2, 'shrinkA': 0, 'shrinkB': 0})
    axes.annotate(label, (start + end) / 2, offset, textcoords='offset points', color=color,
                  fontsize=11)


def draw_steps(axes, problem):
    """Draw the steps from a snapshot, and the gradients of one of them."""
    snapshot = np.array([-0.6, 2.3])
    mu, weight, path = problem.gradient(snapshot), snapshot.copy(), [snapshot.copy()]
    rng = np.random.RandomState(1)
    for _ in range(EPOCHS):
        for batch in rng.permutation(24).reshape(-1, BATCH_SIZE):
            now, then = problem.gradient(weight, batch), problem.gradient(snapshot, batch)
            if len(path) == SHOWN:
                chain = np.cumsum([weight, -now * LENGTH, then * LENGTH, -mu * LENGTH], axis=0)
            weight = weight - RATE * (now - then + mu)
            path.append(weight)
    grid = np.stack(np.meshgrid(np.linspace(-0.9, 2.7, 200), np.linspace(0.9, 3.1, 200)), -1)
    axes.contour(grid[..., 0], grid[..., 1], problem.loss(grid), 14, colors='#dddddd',
                 linewidths=0.8)
    axes.plot(*np.transpose(path), 'o-', color=SVRG, markersize=3, linewidth=1, alpha=0.5)
    optimum = np.linalg.lstsq(problem.rows, problem.targets, rcond=None)[0]
    for point, marker, label, offset in (
            (snapshot, 's', r'snapshot $\tilde{w}$', (-30, 10)),
            (path[-1], 's', 'next snapshot', (-40, -16)), (optimum, '*', 'optimum', (8, -3))):
        axes.plot(*point, marker, color='black', markersize=11 if marker == '*' else 6)
        axes.annotate(label, point, offset, textcoords='offset points', fontsize=10)
    for start, end, color, label, offset in zip(
            chain, chain[1:], (SGD, NEUTRAL, NEUTRAL),
            (r'$-\nabla f_\mathrm{batch}(w)$', r'$+\nabla f_\mathrm{batch}(\tilde{w})$', r'$-\mu$'),
            OFFSETS):
        arrow(axes, start, end, color, label, offset)
    arrow(axes, chain[0], chain[-1], SVRG, '$-g$', OFFSETS[-1])
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect('equal')


def draw_time(axes):
    """Draw what an epoch with a snapshot and one without consist of."""
    for place in range(6):
        is_pass = place % 3 == 0
        label = 'pass at $\\tilde{w}$:\n$\\mu$' if is_pass else 'an epoch\nof steps'
        axes.add_patch(Rectangle((place, 0), 0.94, 1, color=NEUTRAL if is_pass else SVRG,
                                 alpha=0.85))
        axes.text(place + 0.47, 0.5, label, ha='center', va='center', color='white', fontsize=9)
    axes.set_xlim(-0.05, 6)
    axes.set_ylim(0, 1)
    axes.axis('off')


def main():
    args = arguments(__file__, passes=5)
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 5), height_ratios=[6, 1])
    draw_steps(above, Squares())
    draw_time(below)
    save(figure, args.output)


if __name__ == '__main__':
    main()

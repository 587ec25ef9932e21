"""Training loss over gradient passes for several learning rates, SGD beside SVRG."""

from common import COLORS, OddDigits, arguments, axes_of_excess, save, train

RATES = (0.5, 2.0, 8.0, 32.0)


def main():
    args = arguments(__file__, passes=60)
    problem = OddDigits()
    figure, axes = axes_of_excess('Logistic regression, constant learning rate', columns=2)
    for one, update_freq, method in zip(axes, (None, 2), ('SGD', 'SVRG, update_freq=2')):
        one.set_title(method, fontsize=10)
        for rate, color in zip(RATES, COLORS):
            one.plot(*train(problem, rate, args.passes, update_freq), color=color, linewidth=1.8,
                     label='rate %g' % rate)
    axes[1].legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

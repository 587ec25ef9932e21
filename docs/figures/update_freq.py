"""Training loss over gradient passes for several numbers of epochs between snapshots."""

from common import COLORS, OddDigits, arguments, axes_of_excess, save, train

RATE = 4.0


def main():
    args = arguments(__file__, passes=100)
    problem = OddDigits()
    figure, (axes,) = axes_of_excess('Logistic regression, constant learning rate %g' % RATE)
    for update_freq, color in zip((1, 2, 4, 8), COLORS):
        axes.plot(*train(problem, RATE, args.passes, update_freq), color=color, linewidth=1.8,
                  label='SVRG, update_freq=%d' % update_freq)
    axes.plot(*train(problem, RATE, args.passes), ':', color=COLORS[4], linewidth=1.8, label='SGD')
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

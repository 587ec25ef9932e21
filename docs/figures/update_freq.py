"""Training loss over gradient passes for several numbers of epochs between snapshots."""

from common import SGD, SVRG, OddDigits, arguments, axes_of_excess, save, settings_of, train

RATE = 4.0


def main():
    args = arguments(__file__, passes=100)
    problem = OddDigits()
    figure, (axes,) = axes_of_excess('Logistic regression, constant learning rate %g' % RATE)
    for update_freq, style in zip((1, 2, 4, 8), settings_of(SVRG, 4, 1)):
        axes.plot(*train(problem, RATE, args.passes, update_freq), **style,
                  label='SVRG, update_freq=%d' % update_freq)
    axes.plot(*train(problem, RATE, args.passes), color=SGD, linewidth=1.8, label='SGD')
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

"""Training loss over gradient passes for several batch sizes."""

from common import SVRG, OddDigits, arguments, axes_of_excess, save, settings_of, train

RATE = 4.0


def main():
    args = arguments(__file__, passes=60)
    problem = OddDigits()
    figure, (axes,) = axes_of_excess('Logistic regression, SVRG with constant learning rate %g'
                                     % RATE)
    for batch_size, style in zip((4, 16, 64, 256), settings_of(SVRG, 4, 1)):
        axes.plot(*train(problem, RATE, args.passes, 2, batch_size), **style,
                  label='batches of %d' % batch_size)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

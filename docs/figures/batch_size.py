"""Training loss over gradient passes for several batch sizes, at one constant rate."""

from common import STYLES, SVRG, OddDigits, arguments, axes_of_excess, save, train

RATE, SIZES = 4.0, (4, 16, 64, 256)


def main():
    args = arguments(__file__, passes=60)
    problem = OddDigits()
    figure, (axes,) = axes_of_excess(
        'Logistic regression, SVRG by sgd at the rate %g, update_freq=2' % RATE)
    for batch_size, style in zip(SIZES, ('-', *STYLES)):
        axes.plot(*train(problem, RATE, args.passes, 2, batch_size), color=SVRG,
                  linestyle=style, linewidth=1.8, label='batches of %d' % batch_size)
    axes.set_xlim(0, args.passes)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

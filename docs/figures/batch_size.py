"""Training loss over gradient passes for several batch sizes, at one rate and at found rates."""

from common import NEUTRAL, STYLES, SVRG, OddDigits, arguments, axes_of_excess, save, train

RATE, SIZES = 4.0, (4, 16, 64, 256)


def main():
    args = arguments(__file__, passes=60)
    problem = OddDigits()
    figure, axes = axes_of_excess('Logistic regression, SVRG with update_freq=2', columns=2)
    for one, rate, color, title in ((axes[0], RATE, NEUTRAL, 'sgd, constant rate %g' % RATE),
                                    (axes[1], None, SVRG, 'newton_cg')):
        one.set_title(title, fontsize=10)
        for batch_size, style in zip(SIZES, ('-', *STYLES)):
            one.plot(*train(problem, rate, args.passes, 2, batch_size), color=color,
                     linestyle=style, linewidth=1.8, label='batches of %d' % batch_size)
        one.set_xlim(0, args.passes)
        one.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

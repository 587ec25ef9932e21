"""Training loss over gradient passes for several learning rates, SGD beside SVRG."""

from common import SGD, SVRG, OddDigits, arguments, axes_of_excess, save, settings_of, train

RATES = (0.5, 2.0, 8.0, 32.0)


def main():
    args = arguments(__file__, passes=60)
    problem = OddDigits()
    figure, axes = axes_of_excess('Logistic regression, constant learning rate', columns=2)
    for one, update_freq, method, color, best in (
            (axes[0], None, 'SGD', SGD, 0.5), (axes[1], 2, 'SVRG, update_freq=2', SVRG, 8.0)):
        one.set_title(method, fontsize=10)
        for rate, style in zip(RATES, settings_of(color, 4, RATES.index(best))):
            one.plot(*train(problem, rate, args.passes, update_freq), **style,
                     label='rate %g%s' % (rate, ', the best' if rate == best else ''))
        one.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

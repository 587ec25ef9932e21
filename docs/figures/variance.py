"""Variance of a row's gradient at each step, with plain SGD and with SVRG."""

import numpy as np
from common import NEUTRAL, SGD, SVRG, OddDigits, arguments, pyplot, save, train, weight_of

BATCH_SIZE, UPDATE_FREQ, RATE, EVERY = 16, 2, 4.0, 8


def spread(gradients):
    """Return the mean squared distance of the rows' gradients from their mean."""
    return ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean()


def main():
    args = arguments(__file__, passes=25)
    problem = OddDigits()
    batches = -(-len(problem.labels) // BATCH_SIZE)
    plain, corrected, bound, snapshot = [], [], [], {}

    def record_plain(module, epoch, nbatch):
        if nbatch % EVERY == 0:
            gradients = problem.gradients_of_rows(weight_of(module))
            plain.append((epoch + (nbatch + 1) / batches, spread(gradients)))

    def record_corrected(module, epoch, nbatch):
        if epoch % UPDATE_FREQ == 0 and nbatch == 0:
            arg_params, _ = module._mod_aux.get_params()
            snapshot['weight'] = arg_params['fc_weight'].asnumpy().ravel().astype(np.float64)
        if nbatch % EVERY == 0:
            weight, old = weight_of(module), snapshot['weight']
            time = epoch + (nbatch + 1) / batches
            corrected.append((time, spread(problem.gradients_of_rows(weight)
                                           - problem.gradients_of_rows(old))))
            bound.append((time, problem.smoothness ** 2 * ((weight - old) ** 2).sum()))

    train(problem, RATE, args.passes, UPDATE_FREQ, BATCH_SIZE, record_corrected)
    epochs = int(np.ceil(corrected[-1][0]))
    train(problem, RATE, epochs, None, BATCH_SIZE, record_plain)

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for curve, style, color, label in ((plain, '-', SGD, 'SGD'),
                                       (bound, ':', NEUTRAL,
                                        r'SVRG, bound $L_{\max}^2 \|w - \tilde{w}\|^2$'),
                                       (corrected, '-', SVRG, 'SVRG')):
        axes.semilogy(*zip(*curve), style, color=color, linewidth=1.8, label=label)
    axes.set_xlabel('epoch (a snapshot every %d)' % UPDATE_FREQ)
    axes.set_ylabel('variance of a row’s gradient')
    axes.set_xlim(0, epochs)
    axes.grid(True, which='major', alpha=0.3)
    axes.set_title('Logistic regression, constant learning rate %g' % RATE, fontsize=11)
    axes.legend()
    save(figure, args.output)


if __name__ == '__main__':
    main()

"""SVRG with Barzilai-Borwein steps from several first rates, the bound, and momentum."""

import mxnet as mx
import numpy as np
from common import SVRG, arguments, pyplot, save, settings_of

from svrg_optimization import BarzilaiBorwein, SVRGModule

ROWS, FEATURES, BATCH_SIZE = 2000, 20, 64
FIRST_RATES = (0.001, 0.01, 0.1, 1.0)


def main():
    args = arguments(__file__, passes=120, momentum=0.9)
    rng = np.random.RandomState(0)
    features = rng.normal(size=(ROWS, FEATURES)) * np.logspace(0, -1.25, FEATURES)
    targets = features @ rng.normal(size=FEATURES) + 0.1 * rng.normal(size=ROWS)
    optimum = np.linalg.lstsq(features, targets, rcond=None)[0]

    def excess(weight):
        return (((features @ weight - targets) ** 2).mean()
                - ((features @ optimum - targets) ** 2).mean()) / 2

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 4), sharey=True)
    for axes, bounded, momentum, title in zip(
            panels, (True, True, False), (0, args.momentum, 0),
            ('with the bound 1 / L', 'with the bound and momentum %g' % args.momentum,
             'the formula alone')):
        for rate, style in zip(FIRST_RATES, settings_of(SVRG, 4)):
            train_data = mx.io.NDArrayIter(features, targets, BATCH_SIZE, label_name='target')
            output = mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1, no_bias=True,
                                           name='fc')
            symbol = mx.sym.LinearRegressionOutput(output, mx.sym.Variable('target'))
            module = SVRGModule(symbol, label_names=('target',), update_freq=2)
            curve = []

            def record(epoch, _, arg_params, __, curve=curve):
                weight = arg_params['fc_weight'].asnumpy().ravel().astype(np.float64)
                curve.append((2.5 * (epoch + 1), excess(weight)))

            rule = BarzilaiBorwein(rate, bounded, with_momentum=momentum > 0)
            module.fit(train_data, eval_metric='mse', num_epoch=int(args.passes / 2.5),
                       initializer=mx.init.Zero(), epoch_end_callback=record,
                       optimizer_params={'learning_rate': rate, 'momentum': momentum,
                                         'lr_scheduler': rule})
            axes.semilogy(*zip(*curve), **style, label='first rate %g' % rate)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel('gradient passes')
        axes.set_ylim(1e-7, 1e3)
        axes.grid(True, which='major', alpha=0.3)
    panels[0].set_ylabel('training loss minus optimum')
    panels[0].legend()
    figure.suptitle('Least squares, %d rows and %d features, SVRG with Barzilai-Borwein steps'
                    % (ROWS, FEATURES), fontsize=11, y=0.95)
    save(figure, args.output)


if __name__ == '__main__':
    main()

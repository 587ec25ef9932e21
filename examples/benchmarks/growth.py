"""Does the time of SVRG grow linearly with rows, features, parameters and update_freq?

Times epochs of softmax regression, or of a perceptron, while one of them is
doubled again and again, and fits the exponent of the growth over the three
largest sizes: 1 is linear. Where a batch's time is that of the dispatch of
its operations and not of its arithmetic, the exponent is below 1. For
update_freq it is the time of a run of so many epochs, with one pass each.
"""

import common
import mxnet as mx
import numpy as np
from common import pyplot

from svrg_optimization import SVRGModule


def trainer(network, shape, rows, batch_size, update_freq=1):
    """Return a function that trains `update_freq` epochs, beginning with a pass."""
    train_data = common.iterator(shape, rows, batch_size)
    module = SVRGModule(network, update_freq=update_freq)

    def train():
        module.fit(train_data, eval_metric=[], num_epoch=update_freq,
                   optimizer_params={'learning_rate': 1e-4})

    train()
    return train


CASES = {
    'rows': [(rows, (*common.softmax(256), rows, 128)) for rows in (2048, 4096, 8192, 16384)],
    'features': [(features, (*common.softmax(features), 2048, 128))
                 for features in (2048, 4096, 8192, 16384)],
    'parameters': [(hidden * 794, (*common.perceptron(hidden=(hidden,)), 2048, 128))
                   for hidden in (512, 1024, 2048, 4096)],
    'update_freq': [(update_freq, (*common.softmax(256), 4096, 128, update_freq))
                    for update_freq in (4, 8, 16, 32)],
}


def draw(axes, what, sizes, milliseconds):
    """Draw times over sizes, with ticks at all sizes and round times."""
    axes.loglog(sizes, milliseconds, 'o-', color=common.COLORS['SVRG'], label='SVRG')
    axes.loglog(sizes, milliseconds[-1] * sizes / sizes[-1], ':', color='gray', label='linear')
    axes.set(xlabel=what, ylabel='ms')
    axes.set_title('Growth with %s' % what, **common.TITLE)
    axes.set_xticks(sizes)
    axes.set_xticklabels([size if size < 1e5 else '%.1fM' % (size / 1e6) for size in sizes],
                         fontsize=8)
    ticks = [step * power for power in (1, 10, 100, 1000) for step in (1, 2, 5)]
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_major_formatter('{x:g}')
    axes.minorticks_off()


def main():
    args = common.parser(__doc__).parse_args()
    common.quiet()
    rows = []
    figure, axes = pyplot.subplots(1, len(CASES), figsize=(11, 3))
    for (what, cases), plot in zip(CASES.items(), axes):
        least = common.least_seconds({size: trainer(*arguments) for size, arguments in cases},
                                     args.rounds)
        sizes, seconds = np.array(list(least)), np.array(list(least.values()))
        half = len(sizes) // 2
        exponent = np.polyfit(np.log(sizes[half - 1:]), np.log(seconds[half - 1:]), 1)[0]
        rows.append([what, ', '.join(map(str, sizes)),
                     ', '.join('%.0f' % (1e3 * value) for value in seconds), '%.2f' % exponent])
        draw(plot, what, sizes, 1e3 * seconds)
    axes[0].legend(fontsize=8)
    common.write(args.output, 'growth',
                 'Minimum of %d interleaved rounds. The exponent is fitted to the three largest '
                 'sizes.' % args.rounds,
                 ['what grows', 'sizes', 'ms', 'exponent'], rows)
    common.save_picture(args.output, 'growth', figure)
    mx.nd.waitall()


if __name__ == '__main__':
    main()

"""Does a training run without a learning rate end worse than it began, or say a false word?

In each kind of problem a learning rate easily goes wrong: batches of one row,
columns of any scale, a few very large rows, data as they ship, and so on. NumPy computes
the objectives at start and end in float64. A run has converged if it says so within the epochs.
Newton's method in float64 finds the optimum. A run is near it if at most 1e-5 remains of what the
optimum is better than the best constant prediction, or 100 times what rounding the optimum to
float32 costs. One that says that it has converged and is not
near is wrong. Epochs are counted until the run ends.
"""

import functools
import tempfile
import warnings

import common
import mxnet as mx
import numpy as np
from mxnet import gluon
from scipy.special import expit, log_softmax, softmax
from sklearn import datasets

from svrg_optimization import SVRGBucketingModule, SVRGModule, SVRGTrainer
from svrg_optimization.proximal import L1

TOL, EPOCHS, NEAR, FINE = 1e-4, 100, 1e-5, 1e-7
GROUPS = {  # what is hard, and the kinds of problems in which it is
    'few rows a batch, or one': ('few rows a batch', 'one row a batch'),
    'raw columns: scales 1e6 apart, correlated, 400 of them': (
        'columns', 'unscaled', 'census', 'rotated', 'rotated 1e6', '400 columns'),
    'means far from 0: dates, years, up to 1e6 spreads': (
        'offset 100', 'not centred', 'dates', 'years', 'mean 1e3', 'mean 1e6',
        'operator off centre'),
    'tables as they ship, and little weight decay': ('as they ship', 'weak decay'),
    'a few very large rows, counts': ('outliers', 'heavy rows', 'Poisson', 'large counts'),
    'starts far off, or where the loss is flat': ('flat', 'saturated', 'far from 0'),
    'L1, two devices, buckets, resumed runs, rates by layer, noisy rows': (
        'proximal', 'two devices', 'buckets', 'resumed', 'multiplier', 'noise in the pass')}
ROUNDING = 100  # times what the objective rises by where the optimum is rounded to float32


def huber(scores, targets):
    error = np.abs(scores - targets)
    return np.where(error < 1, error ** 2 / 2, error - 0.5)


SHIPPED = ((datasets.load_breast_cancer, 'logistic', 1), (datasets.load_wine, 'softmax', 3),
           (functools.partial(datasets.load_diabetes, scaled=False), 'squares', 1),
           (datasets.load_iris, 'softmax', 3))
LOSSES = {  # of a row
    'squares': lambda scores, targets: (scores - targets) ** 2 / 2,
    'logistic': lambda scores, targets: np.logaddexp(0, scores) - targets * scores,
    'softmax': lambda scores, targets: -log_softmax(scores, axis=1) * np.eye(
        scores.shape[1])[targets[:, 0].astype(int)],
    'huber': huber,
    'poisson': lambda scores, targets: np.exp(scores) - targets * scores}
MEANS = {'squares': lambda scores: scores, 'logistic': expit, 'poisson': np.exp,
         'softmax': functools.partial(softmax, axis=1)}
class Noisy(mx.io.NDArrayIter):
    """Rows with other noise in each pass, of which no optimum is known."""

    def next(self):
        batch = super().next()
        batch.data = [data + mx.nd.random.normal(0, 0.1, data.shape) for data in batch.data]
        return batch


class Training:
    """Rows, a linear model, and how it is trained."""

    def __init__(self, features, targets, loss='squares', batch_size=10, outputs=1, scale=0.01,
                 wd=0., proximal=None, bias=0., is_convex=False, **fit):
        self.features, self.targets = features.astype('float32'), targets.astype('float32')
        self.loss, self.batch_size, self.wd = loss, batch_size, wd
        self.outputs, self.proximal = outputs, proximal
        self.is_convex, self.fit = is_convex, fit
        weight = scale * np.random.RandomState(0).normal(size=(outputs, features.shape[1]))
        self.start = {'fc_weight': weight, 'fc_bias': np.full(outputs, bias)}

    def symbol(self):
        layer, label = mx.sym.Variable('data'), mx.sym.Variable('label')
        scores = mx.sym.FullyConnected(layer, num_hidden=self.outputs, name='fc')
        if self.loss in ('huber', 'poisson'):
            scores, label = mx.sym.reshape(scores, (-1,)), mx.sym.reshape(label, (-1,))
            return mx.sym.MakeLoss(mx.sym.smooth_l1(scores - label, scalar=1)
                                   if self.loss == 'huber' else mx.sym.exp(scores) - label * scores)
        return {'squares': mx.sym.LinearRegressionOutput,
                'logistic': mx.sym.LogisticRegressionOutput,
                'softmax': mx.sym.SoftmaxOutput}[self.loss](scores, label)

    def objective(self, weights):
        """Return the objective, in float64."""
        layer = self.features.astype('f8')
        scores = layer @ weights['fc_weight'].T + weights['fc_bias']
        loss = LOSSES[self.loss](scores, self.targets.reshape(-1, 1)).sum() / len(self.features)
        decayed = [value for name, value in weights.items() if not name.endswith('bias')]
        loss += self.wd / 2 * sum((value ** 2).sum() for value in decayed)
        return loss + (self.proximal.value(mx.nd.array(decayed[-1])) if self.proximal else 0)

    def optimum(self):
        """Return the least objective of one layer, and that of its weights rounded to float32.

        Newton steps find it, on columns of one scale.
        """
        means = self.features.astype('f8').mean(axis=0)
        rows = np.column_stack([self.features - means, np.ones(len(self.features))])
        lengths = np.sqrt((rows ** 2).mean(axis=0))
        lengths[lengths == 0] = 1
        rows, shape = rows / lengths, (self.outputs, len(lengths))
        decay = np.tile(np.append(np.full(len(lengths) - 1, self.wd), 0) / lengths ** 2,
                        self.outputs)
        targets = (np.eye(self.outputs)[self.targets.astype(int)] if self.loss == 'softmax'
                   else self.targets[:, None])
        weights = np.zeros(len(decay))

        def objective(weights, dtype='f8'):
            matrix = weights.reshape(shape) / lengths
            found = matrix[:, :-1], matrix[:, -1] - matrix[:, :-1] @ means
            return self.objective({'fc_' + name: value.astype(dtype).astype('f8')
                                   for name, value in zip(('weight', 'bias'), found)})

        for _ in range(100):
            scores = rows @ weights.reshape(shape).T
            if self.loss == 'huber':
                error, curved = np.clip(scores - targets, -1, 1), abs(scores - targets) < 1
            else:
                expected = MEANS[self.loss](scores)
                error = expected - targets
                curved = {'squares': np.ones_like(expected),
                          'logistic': expected * (1 - expected)}.get(self.loss, expected)
            curved = curved[:, :, None] * np.eye(self.outputs)
            if self.loss == 'softmax':
                curved = curved - expected[:, :, None] * expected[:, None]
            gradient = (error.T @ rows / len(rows)).ravel() + decay * weights
            hessian = np.einsum('nkl,ni,nj->kilj', curved, rows, rows, optimize=True)
            hessian = hessian.reshape(len(decay), -1) / len(rows) + np.diag(decay)
            here, damping = objective(weights), 1e-12
            while damping < 1e6:  # Levenberg and Marquardt's
                step = np.linalg.solve(hessian + damping * np.eye(len(decay)), gradient)
                if objective(weights - step) < here:
                    break
                damping *= 10
            if damping >= 1e6:
                break
            weights = weights - step
        return objective(weights), objective(weights, 'f4')

    def constant(self):
        """Return the objective of the best constant prediction."""
        return Training(0 * self.features, self.targets, self.loss, outputs=self.outputs,
                        wd=1.).optimum()[0]

    def run(self):
        """Train; return the objectives before and after, whether it converged, and the epochs."""
        fit = dict(self.fit)
        initializer = fit.pop('initializer', None)
        if initializer is not None:
            for name, value in self.start.items():
                array = mx.nd.zeros(value.shape)
                initializer(mx.init.InitDesc(name), array)
                self.start[name] = array.asnumpy().astype(float)
        if fit.pop('gluon', False):
            return self.run_gluon(fit.pop('epochs', EPOCHS), fit.pop('tol', TOL))
        num_epoch = fit.pop('epochs', EPOCHS)
        optimizer = 'newton_cg'
        params = {'wd': self.wd}
        multipliers = {name: fit.pop(name) for name in ('lr_mult',) if name in fit}
        iterator = Noisy if fit.pop('is_noisy', False) else mx.io.NDArrayIter
        train_data = iterator(self.features, self.targets, self.batch_size, shuffle=True,
                              label_name='label')
        devices = [mx.cpu(i) for i in range(fit.pop('devices', 1))]
        resumes, kvstore = fit.pop('resumes', None), fit.pop('kvstore', 'local')
        settings = {'tol': TOL, **fit}
        symbol = self.symbol()
        if multipliers:
            optimizer = mx.optimizer.create(
                optimizer, rescale_grad=1 / self.batch_size, wd=self.wd, sym=symbol,
                param_idx2name=dict(
                    enumerate(name for name in symbol.list_arguments()
                              if name not in ('data', 'label'))))
            optimizer.set_lr_mult(multipliers['lr_mult'])
            kvstore = None
        epochs = []

        def train(module, begin, end):
            module.fit(train_data, eval_metric=[], optimizer=optimizer, optimizer_params=params,
                       kvstore=kvstore, begin_epoch=begin, num_epoch=end,
                       initializer=mx.init.Zero(), arg_params={
                           name: mx.nd.array(value)
                           for name, value in self.start.items()},
                       epoch_end_callback=lambda epoch, *_: epochs.append(epoch))

        module = SVRGModule(symbol, label_names=('label',), context=devices,
                            proximal=self.proximal, **settings)
        if resumes:
            with tempfile.TemporaryDirectory() as folder:
                train(module, 0, resumes)
                saved = len(epochs)  # fewer where training converged before
                module.save_checkpoint(folder + '/a', saved, save_optimizer_states=True)
                module = SVRGModule.load(folder + '/a', saved, True, label_names=('label',))
                train(module, saved, num_epoch)
        else:
            train(module, 0, num_epoch)
        weights = {name: value.asnumpy().astype(float)
                   for name, value in module.get_params()[0].items()}
        start = {name: value.astype('float32').astype(float) for name, value in self.start.items()}
        return (self.objective(start), self.objective(weights), module.has_converged,
                len(epochs))

    def run_gluon(self, num_epoch, tol):
        """Train one layer in Gluon."""
        net = gluon.nn.Dense(self.outputs, in_units=self.features.shape[1], prefix='fc_')
        net.initialize()
        for name, param in net.collect_params().items():
            param.set_data(mx.nd.array(self.start[name]))
            param.wd_mult = float(name.endswith('weight'))
        loss = {'squares': gluon.loss.L2Loss(), 'softmax': gluon.loss.SoftmaxCrossEntropyLoss(),
                'logistic': gluon.loss.SigmoidBCELoss(), 'huber': gluon.loss.HuberLoss(),
                'poisson': gluon.loss.PoissonNLLLoss()}[self.loss]
        trainer = SVRGTrainer(net.collect_params(), 'newton_cg',
                              {'wd': self.wd}, tol=tol,
                              objective=lambda data, label: loss(net(data), label))
        train_data = gluon.data.DataLoader(gluon.data.ArrayDataset(
            self.features, self.targets), self.batch_size, shuffle=True)
        epochs = 0
        for _ in trainer.epochs(train_data, num_epoch):
            epochs += 1
        weights = {name: param.data().asnumpy().astype(float)
                   for name, param in net.collect_params().items()}
        return (self.objective(self.start), self.objective(weights), trainer.has_converged, epochs)


class Buckets:
    """Which word comes next, in sentences of several lengths."""

    def __init__(self, seed, batch_size, words=12):
        rng = np.random.RandomState(seed)
        self.words, self.batch_size = words, batch_size
        self.sentences = [list(map(int, rng.randint(1, words, size=rng.choice([3, 5, 8]))))
                          for _ in range(60)]

    def sym_gen(self, length):
        data = mx.sym.reshape(mx.sym.one_hot(mx.sym.Variable('data'), depth=self.words),
                              (-1, self.words))
        label = mx.sym.reshape(mx.sym.Variable('softmax_label'), (-1,))
        scores = mx.sym.FullyConnected(data, num_hidden=self.words, name='fc')
        return (mx.sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0), ('data',),
                ('softmax_label',))

    def objective(self, weights):
        pairs = [pair for words in self.sentences for pair in zip(words, words[1:])]
        scores = weights['fc_weight'].T[[word for word, _ in pairs]] + weights['fc_bias']
        return -sum(row[word] for row, (_, word) in zip(log_softmax(scores, axis=1), pairs))

    def run(self):
        np.random.seed(0)
        data = mx.rnn.BucketSentenceIter(self.sentences, self.batch_size, buckets=[3, 5, 8],
                                         invalid_label=0)
        module, epochs = SVRGBucketingModule(
            self.sym_gen, data.default_bucket_key, tol=1e-3), []
        module.fit(data, eval_metric=[], num_epoch=EPOCHS, initializer=mx.init.Zero(),
                   optimizer='newton_cg',
                   epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
        weights = {name: value.asnumpy().astype(float)
                   for name, value in module.get_params()[0].items()}
        start = {name: 0 * value for name, value in weights.items()}
        return (self.objective(start), self.objective(weights), module.has_converged,
                len(epochs))


def signs_of(rng, rows):
    return (rows @ rng.normal(size=rows.shape[1]) + rng.normal(size=len(rows)) > 0) * 1.


def numbers_of(rng, rows, noise=1.):
    return rows @ rng.normal(size=rows.shape[1]) + noise * rng.normal(size=len(rows))


def raw_columns(seed):
    """Yield the kinds with columns as they are: features, targets, and arguments of Training."""
    rng = np.random.RandomState(seed)
    normal = rng.normal

    def signs(scores):
        return (scores + rng.logistic(size=len(scores)) > 0) * 1.

    def classes(rows, count):
        return (rows @ normal(size=(rows.shape[1], count))
                + rng.gumbel(size=(len(rows), count))).argmax(axis=1)

    plain = normal(size=(400, 20))
    raw = plain * 10 ** rng.uniform(-3, 3, 20)
    scores = plain @ normal(size=20) / np.sqrt(5)
    for wd in (0, 1e-3):
        yield 'unscaled', raw, signs(scores), {'loss': 'logistic', 'batch_size': 20, 'wd': wd}
        yield 'unscaled', raw, 10 ** (2000 * wd) * (scores + normal(size=400)), {
            'batch_size': 20, 'wd': wd}
    yield 'unscaled', raw, classes(plain, 4), {'loss': 'softmax', 'batch_size': 20, 'wd': 1e-3,
                                               'outputs': 4}
    yield 'unscaled', raw, rng.poisson(np.exp(0.3 * scores)), {'loss': 'poisson', 'batch_size': 20}
    gains = np.where(rng.uniform(size=1000) < 0.1, rng.uniform(3000, 1e5, 1000), 0)
    census = np.column_stack([
        gains, rng.uniform(17, 90, 1000), np.clip(normal(40, 12, 1000), 1, 99),
        *(np.eye(count)[np.minimum(rng.geometric(0.3, 1000) - 1, count - 1)]
          for count in (8, 15, 6))])
    standard = (census - census.mean(axis=0)) / census.std(axis=0).clip(1e-9)
    scores = standard @ normal(size=census.shape[1]) / 3
    for wd in (0, 1e-4):
        yield 'census', census, signs(scores), {'loss': 'logistic', 'batch_size': 50, 'wd': wd}
    yield 'census', census, scores + normal(size=1000), {'batch_size': 50}
    yield 'census', census, classes(standard / 3, 3), {'loss': 'softmax', 'batch_size': 50,
                                                       'wd': 1e-4, 'outputs': 3}
    turn = np.linalg.qr(normal(size=(20, 20)))[0]
    for decades in (1, 2, 3):
        rotated = normal(size=(600, 20)) * np.logspace(0, -decades, 20) @ turn.T
        scores = rotated @ normal(size=20)
        yield 'rotated', rotated, scores + 0.1 * normal(size=600), {'batch_size': 30}
        yield 'rotated', 4 * rotated, signs(4 * scores), {'loss': 'logistic', 'batch_size': 30,
                                                          'wd': 1e-5}
    positive = np.abs(normal(size=(600, 30))) + 3
    rotated = normal(size=(600, 20)) * np.logspace(0, -3, 20) @ turn.T
    yield 'rotated 1e6', rotated, classes(1e3 * rotated / 20, 3), {
        'loss': 'softmax', 'batch_size': 30, 'wd': 1e-9, 'outputs': 3}
    far = normal(size=(600, 10))
    yield 'offset 100', far + 100, numbers_of(rng, far), {'batch_size': 30, 'wd': 1e-6}
    yield 'offset 100', far + 100, signs(3 * far @ normal(size=10)), {
        'loss': 'logistic', 'batch_size': 30, 'wd': 1e-6}
    yield 'offset 100', far + 100, classes(far, 4), {'loss': 'softmax', 'batch_size': 30,
                                                     'wd': 1e-6, 'outputs': 4}
    for load, loss, outputs in SHIPPED:
        shipped, targets = load(return_X_y=True)
        shipped = (shipped - shipped.mean(axis=0)) / shipped.std(axis=0)
        yield 'weak decay', shipped, targets, {'loss': loss, 'batch_size': 32, 'wd': 1e-6,
                                               'outputs': outputs}
    yield 'not centred', positive, numbers_of(rng, positive), {'batch_size': 30}
    yield 'not centred', positive, classes(positive, 3), {'loss': 'softmax', 'batch_size': 30,
                                                          'wd': 1e-3, 'outputs': 3}
    plain = normal(size=(400, 8))
    scores = 0.7 * plain @ normal(size=8)
    for means in ([2000, 0, 0, 0, 0, 0, 0, 0], [50, 5, 5, 5, 0, 0, 0, 0], [200] + 7 * [20]):
        far = plain * [10, 1, 1, 1, 1, 1, 1, 1] + means
        yield 'far from 0', far, signs(scores), {'loss': 'logistic', 'batch_size': 20}
        yield 'far from 0', far, scores + normal(size=400), {'batch_size': 20}


def off_centre(seed):
    """Yield the kinds with columns far from 0, many columns, or targets far away."""
    rng = np.random.RandomState(seed)
    normal = rng.normal(size=(600, 4))
    dates = 1.6e9 * (1 + 0.02 * rng.normal(size=600))
    years = rng.randint(2007, 2010, size=600).astype(float)
    for kind, column in (('dates', dates), ('years', years), ('mean 1e3', 1e3 + normal[:, 0]),
                         ('mean 1e6', 1e6 + normal[:, 0])):
        rows = np.column_stack([column, normal[:, 1:]]).astype('float32').astype('f8')
        scores = (rows[:, 0] - rows[:, 0].mean()) / rows[:, 0].std() + rows[:, 1:] @ [1, -1, 0.5]
        yield kind, rows, scores + rng.normal(size=600), {'batch_size': 30}
        yield kind, rows, (scores + rng.logistic(size=600) > 0) * 1., {
            'loss': 'logistic', 'batch_size': 30, 'wd': 1e-6}
    yield 'large counts', normal, rng.poisson(np.exp(7 + normal[:, 0] / 3)), {
        'loss': 'poisson', 'batch_size': 30}
    many = rng.normal(size=(600, 400)) + 2
    yield '400 columns', many, numbers_of(rng, many), {'batch_size': 60, 'wd': 1e-2}
    yield '400 columns', many, signs_of(rng, many - 2), {'loss': 'logistic', 'batch_size': 60,
                                                         'wd': 1e-2}


def trainings(short, seeds):
    """Yield the kind of each training, and the training; some also end after `short` epochs."""
    for seed in range(seeds):
        rng = np.random.RandomState(10 + seed)
        normal = rng.normal
        signs, numbers = functools.partial(signs_of, rng), functools.partial(numbers_of, rng)
        x = normal(size=(30, 80))
        yield 'few rows a batch', Training(x, normal(size=30), batch_size=4)
        yield 'few rows a batch', Training(normal(size=(50, 45)), normal(size=50), batch_size=5)
        x = normal(size=(70, 30))
        yield 'few rows a batch', Training(x, signs(x), 'logistic', 4, wd=1e-3)
        x = normal(size=(90, 30))
        yield 'one row a batch', Training(x, normal(size=90), batch_size=1)
        x = normal(size=(80, 25))
        yield 'one row a batch', Training(x, signs(x), 'logistic', 1, wd=1e-2)
        x = normal(size=(300, 8))
        yield 'flat', Training(1e-3 * x, numbers(x), batch_size=30)
        yield 'saturated', Training(x, signs(x), 'logistic', 30, wd=1e-3, scale=50)
        yield 'saturated', Training(5 * x, rng.randint(4, size=300), 'softmax', 20, outputs=4,
                                    scale=5)
        yield 'columns', Training(x * np.logspace(-2, 3, 8), signs(x), 'logistic', 30)
        yield 'columns', Training(x * np.logspace(0, 2, 8), numbers(x), batch_size=30)
        yield 'outliers', Training(np.where((np.arange(300) == 5)[:, None], 80, 1) * x,
                                   numbers(x), batch_size=25)
        yield 'outliers', Training(x, numbers(x) + 200 * (rng.uniform(size=300) < 0.1), 'huber',
                                   25)
        yield 'Poisson', Training(x / 3, rng.poisson(np.exp(np.clip(numbers(x / 4), -4, 4))),
                                  'poisson', 25)
        yield 'two devices', Training(x, signs(x), 'logistic', 10, wd=1e-3, devices=2)
        yield 'two devices', Training(normal(size=(40, 60)), normal(size=40), batch_size=4,
                                      devices=2)
        yield 'buckets', Buckets(seed, 6)
        yield 'proximal', Training(x, numbers(x), batch_size=10, proximal=L1(0.05), scale=1)
        yield 'proximal', Training(x, signs(x), 'logistic', 5, wd=0.01, proximal=L1(0.01))
        yield 'resumed', Training(normal(size=(30, 50)), normal(size=30), batch_size=3, resumes=3)
        yield 'resumed', Training(x, signs(x), 'logistic', 20, wd=1e-3, resumes=4)
        yield 'multiplier', Training(x, numbers(x), batch_size=30, lr_mult={'fc_weight': 10.})
        yield 'multiplier', Training(x, signs(x), 'logistic', 30, wd=1e-3,
                                     lr_mult={'fc_bias': 20., 'fc_weight': 0.5})
        for kind, features, targets, arguments in raw_columns(1000 + seed):
            for front_end in ({}, {'gluon': True}):
                for epochs in (EPOCHS, *short):  # where scores are 0, SigmoidBCELoss has a kink
                    yield kind, Training(features, targets, scale=0, bias=0.1, is_convex=True,
                                         tol=FINE, epochs=epochs, **arguments, **front_end)
        yield 'noise in the pass', Training(x, numbers(x), batch_size=30, is_noisy=True)
        yield 'operator off centre', Training(x + 5, numbers(x), batch_size=30, proximal=L1(0.05))
        for kind, features, targets, arguments in off_centre(2000 + seed):
            for front_end in ({}, {'gluon': True}):
                for start in ({'scale': 0}, {'initializer': mx.init.Uniform(0.07)}, {'scale': 3}):
                    yield kind, Training(features, targets, is_convex=True, tol=1e-5,
                                         **arguments, **start, **front_end)
        for front_end in ({}, {'gluon': True}):
            x = normal(size=(400, 5))
            heavy = np.where((np.arange(400) < 4)[:, None], 1000, 1)
            for loss, targets, outputs in (
                    ('logistic', signs(x), 1), ('huber', numbers(x), 1),
                    ('softmax', (x @ normal(size=(5, 3)) + rng.gumbel(size=(400, 3))).argmax(1),
                     3)):
                yield 'heavy rows', Training(heavy * x, targets, loss, 40, wd=1e-3, scale=0,
                                             outputs=outputs, is_convex=True, tol=FINE,
                                             **front_end)
            for load, loss, outputs in SHIPPED:
                shipped, targets = load(return_X_y=True)
                for initializer in (mx.init.Zero(), mx.init.Uniform(0.07)):
                    for epochs in (EPOCHS, *short):
                        yield 'as they ship', Training(
                            shipped, targets, loss, 32, wd=1e-4, outputs=outputs, epochs=epochs,
                            initializer=initializer, is_convex=True, tol=FINE, **front_end)


def main():
    parser = common.parser(__doc__, rounds=None)
    parser.add_argument('--seeds', type=int, default=1, help='of the data (default: 1)')
    parser.add_argument('--each', action='store_true', help='print a line for each training')
    parser.add_argument('--short', action='store_true', help='end also after 1 to 30 epochs')
    parser.add_argument('--kind', help='a kind alone')
    args = parser.parse_args()
    common.quiet()
    warnings.simplefilter('ignore')
    counts = {}
    for kind, training in trainings(range(1, 31) if args.short else (), args.seeds):
        if args.kind not in (None, kind):
            continue
        np.random.seed(0)
        mx.random.seed(0)
        start, end, converged, epochs = training.run()
        count, has_optimum = counts.setdefault(kind, [0] * 7), getattr(
            training, 'is_convex', False)
        least, is_near = -np.inf, False
        if has_optimum:
            least, rounded = training.optimum()
            is_near = end - least <= max(NEAR * (training.constant() - least),
                                         ROUNDING * (rounded - least))
        is_worse = not end <= start * (1 + 1e-7)
        is_wrong = converged and (has_optimum and not is_near or kind == 'noise in the pass')
        count[:] = [sum(pair) for pair in zip(count, (
            1, converged, is_near, has_optimum, is_wrong, is_worse, epochs))]
        if args.each:
            print('%-18s %10.3g → %10.3g %s %s %d' % (
                kind, start, end,
                'converged' if converged else '', '' if least == -np.inf else
                '%.0e of the way remains' % ((end - least) / (start - least)), epochs),
                flush=True)
    of_groups = {group: np.sum([counts[kind] for kind in kinds if kind in counts], axis=0)
                 for group, kinds in GROUPS.items() if not counts.keys().isdisjoint(kinds)}
    caption = (
        'newton_cg, tol=%g (0.001 for buckets; %g for raw columns, 1e-5 off centre; '
        'near within %g), at most %d epochs.' % (TOL, FINE, NEAR, EPOCHS))
    for head, found, width in (('kind', counts, 7), ('what is hard', of_groups, 5)):
        rows = [cells(name, count) for name, count in found.items()]
        rows.append(cells('all', np.sum(list(found.values()), axis=0)))
        common.write(args.output, 'hard_problems', caption, [
            head, 'trainings', 'epochs', 'converged', 'near the optimum', 'converged but wrong',
            'ended above the start'][:width], [row[:width] for row in rows], new=head == 'kind')


def cells(name, count):
    """Return the row of a kind. Not of all trainings the optimum is known."""
    trainings, converged, near, known, wrong, worse, epochs = count
    return [name, trainings, epochs, converged, '%d of %d' % (near, known) if known else '',
            wrong, worse]


if __name__ == '__main__':
    main()

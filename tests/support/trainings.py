"""Modules and iterators that are not as usual, and what a training shows of its batches."""


from svrg_optimization import SVRGModule


class HeadGradients(SVRGModule):
    """A module that trains a symbol without a loss, by gradients of its output."""

    def backward(self, out_grads=None):
        super().backward([self.get_outputs()[0]] if out_grads is None else out_grads)


def labels_of_epochs(module, train_data, problem, num_epoch=5):
    """Train and return, for each epoch, the labels of all batches that a callback sees."""
    epochs = [[] for _ in range(num_epoch)]
    module.fit(train_data, eval_metric=[], num_epoch=num_epoch, arg_params=problem.arg_params(),
               optimizer_params={'learning_rate': 0.01}, batch_end_callback=lambda param: (
                   epochs[param.epoch].append(param.locals['data_batch'].label[0].asnumpy())))
    return epochs


def fit(problem, num_epoch=8, update_freq=1, batch_size=10, module=None, **kwargs):
    if module is None:
        module = problem.module(update_freq)
    kwargs.setdefault('optimizer_params', {'learning_rate': 0.1})
    return problem.fit(module, num_epoch, problem.iterator(batch_size), **kwargs)

"""Data that go wrong, and what a refused call must leave as it is."""

import os
import pickle

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5}


class Data:
    """Batches as an iterator yields them, with what goes wrong given, and what describes them.

    They may be described `like` those of an iterator.
    """

    def __init__(self, *batches, raises=None, resets=None, like=None, **described):
        self.batches, self.raises, self.resets = batches, raises, resets
        vars(self).update({name: getattr(like, name) for name in (
            'batch_size', 'provide_data', 'provide_label')} if like else described)

    def reset(self):
        if self.resets:
            raise self.resets

    def __iter__(self):
        yield from self.batches
        if self.raises:
            raise self.raises


def state_of(module):
    """Return all that a failed call must leave as it is."""
    arg_params, aux_params = module.get_params()
    full_gradient = module._snapshot.full_gradient
    return {
        'weights': {name: value.asnumpy().tobytes()
                    for name, value in {**arg_params, **aux_params}.items()},
        'snapshot': {name: value.asnumpy().tobytes()
                     for name, value in module._mod_aux.get_params()[0].items()},
        'full gradient': (id(full_gradient), {name: value.asnumpy().tobytes() for name, value
                                              in module._param_dict[0].items()}),
        'optimizer': {key: state.asnumpy().tobytes() for key, state
                      in pickle.loads(module._updater.get_states()).items()},
        'counts': (module._snapshot.num_update, module._snapshot.taken_at,
                   module._snapshot.taken_at, module._optimizer.num_update),
        'settings': (module.update_freq, module.alpha, module.full_grad_batches, module.tol),
        'files': {name: open(name, 'rb').read() for name in sorted(os.listdir())},
    }

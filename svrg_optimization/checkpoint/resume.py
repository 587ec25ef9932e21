"""Saving a module with its snapshot, and resuming from a checkpoint."""

import functools
import logging
from typing import Callable, NamedTuple, Optional

import mxnet as mx

from ..kvstore.kinds import is_asynchronous, is_distributed
from ..mxnet_bridge import executor_group
from ..mxnet_bridge.optimizer_states import (
    set_update_counts,
    state_fits,
    states_in_layout,
    unchanged_on_error,
    update_counts,
    updater_of,
)
from ..mxnet_bridge.storage import is_row_sparse
from ..step_size import BarzilaiBorwein
from .files import save_arrays, save_symbol
from .format import (
    Checkpoint,
    arrays_of_kind,
    errors_of_states,
    file_names,
    with_prefix,
    write_checkpoint,
)


class Loaded(NamedTuple):
    """Loaded parts of a checkpoint that wait for the module's binding and its optimizer.

    Attributes
    ----------
    snapshot : tuple of (dict, dict), optional
        Facts and arrays of the snapshot, until the module is bound for training.
    counts : dict, optional
        Update counts of the optimizer.
    continues_counts : bool
        Whether the next optimizer continues these counts.
    step_size : dict, optional
        Rate and curvature of a BarzilaiBorwein.
    check_states : callable
        Raises an error if the file of the optimizer's states no longer belongs
        to the checkpoint.
    """

    snapshot: Optional[tuple] = None
    counts: Optional[dict] = None
    continues_counts: bool = False
    step_size: Optional[dict] = None
    check_states: Callable = lambda: None


class SnapshotCheckpoints:
    """Mixin that saves and loads an SVRGModule."""

    def save_checkpoint(self, prefix, epoch, save_optimizer_states=False, remove_amp_cast=True):
        """Save the module with all that is needed to resume the training run.

        The files are those of Module, which plain ``Module.load`` reads, and
        ``prefix-%04d.svrg`` with the snapshot, the full gradient and the update
        counts. All files are written whole or not at all.

        Parameters
        ----------
        prefix : str or path
            Beginning of the file names.
        epoch : int
            Number of the epoch, 0 or more; part of the file names.
        save_optimizer_states : bool
            Whether to save the optimizer's states too.
        remove_amp_cast : bool
            Whether to leave casts of mixed precision out of the symbol.

        Raises
        ------
        TypeError
            If `prefix` is not a str or a path, or `epoch` is not an int.
        ValueError
            If `epoch` is negative.
        OSError
            If a file cannot be written, as on a full disk. The files of an
            earlier checkpoint stay as they were.

        Warns
        -----
        UserWarning
            If the optimizer's states are on the servers of a KVStore: they are
            not saved. The warning appears once.
        """
        names = file_names(prefix, epoch)
        writers = {'symbol': functools.partial(save_symbol, self.symbol, remove_amp_cast),
                   'params': functools.partial(save_arrays, self.save_params)}
        if save_optimizer_states:
            writers.update(self._writers_of_states())
        write_checkpoint(names, writers,
                         *self._checkpoint_of_snapshot(self.update_freq, self.alpha))
        logging.info('Saved checkpoint to "%s"', names['params'])
        if 'states' in writers:
            logging.info('Saved optimizer state to "%s"', names['states'])

    def _writers_of_states(self):
        """Return the writer of the optimizer's states; warn if they cannot be saved."""
        if self._servers_hold_states:
            self._warn_once('the states of the optimizer are on the servers, and MXNet cannot save '
                            'them: all else is saved. With MXNET_UPDATE_ON_KVSTORE=0 the workers '
                            'hold them')
            return {}
        return {'states': self.save_optimizer_states}

    def _sync_params_from_devices(self):
        """Copy the weights of the first device to the host.

        Module copies the mean over the devices. With three devices its rounding
        error can make it differ from the weight that all three have.
        """
        super()._sync_params_from_devices()
        if self._kvstore:
            weights, _ = executor_group.weights_of_first_device(self)
            for name, weight in weights.items():
                if not is_row_sparse(weight):
                    weight.astype(self._arg_params[name].dtype).copyto(self._arg_params[name])

    def _checkpoint_of_snapshot(self, update_freq, alpha):
        """Return the state of SVRG as facts and arrays."""
        facts = {'update_freq': update_freq, 'alpha': None if callable(alpha) else float(alpha),
                 'num_update': self._snapshot.num_update, 'step_size': self._step_size(),
                 'optimizer': self._loaded.counts, 'snapshot': None,
                 'proximal': self._proximal.as_json()}
        if self.optimizer_initialized:
            facts['optimizer'] = {**self._update_counts(), 'copies': self._copies,
                                  'on_servers': self._servers_hold_states}
        if self._loaded.snapshot is not None:
            facts['snapshot'], arrays = self._loaded.snapshot
            return facts, arrays
        if not self._snapshot.is_active:
            return facts, {}
        packed, kinds = self._snapshot.full_gradient.pack(shares_differ=self._kvstore is None)
        facts['snapshot'] = {**packed, 'epoch': self._snapshot.epoch,
                             'taken_at': self._snapshot.taken_at,
                             'is_stale': self._snapshot.is_stale}
        arg_params, aux_params = (executor_group.weights_of_first_device(self._mod_aux)
                                  if self._mod_aux.binded else self._mod_aux.get_params())
        kinds.update(arg=arg_params, aux=aux_params)
        return facts, {name: array for kind, arrays in kinds.items()
                       for name, array in with_prefix(kind, arrays).items()}

    @classmethod
    def load(cls, prefix, epoch, load_optimizer_states=False, update_freq=None, **kwargs):
        """Make a module from a checkpoint of this class or of plain Module.

        Parameters
        ----------
        prefix : str or path
            Beginning of the file names.
        epoch : int
            Number of the epoch in the file names.
        load_optimizer_states : bool
            Whether to load the optimizer's states and update counts when the
            optimizer is installed. The counts are not loaded if the optimizer
            is given a `begin_num_update`. The states are a pickle: load only
            files that you trust.
        update_freq : int, optional
            By default the value in the checkpoint; 1 for one of plain Module.
        **kwargs
            Further arguments of the constructor. The default of `alpha` is the
            value in the checkpoint, if it was a number, and that of `proximal`
            the operators, if they were this package's. The number of devices
            may differ from the saved module's.

        Returns
        -------
        SVRGModule
            The module with its parameters, not bound yet. A snapshot that was
            active when it was saved becomes active at `bind`.

        Raises
        ------
        FileNotFoundError
            If a file is missing.
        ValueError
            If a file is truncated, is not part of a checkpoint, or belongs to
            another checkpoint than the others. Also if the constructor raises one.
        TypeError
            If `prefix` is not a str or a path, `epoch` is not an int, or
            `load_optimizer_states` is not a bool. Also if the constructor
            raises one.

        Warns
        -----
        UserWarning
            If the states were on the servers of a KVStore and could not be
            saved: only the counts are loaded. If `alpha` was a schedule, or
            `proximal` had operators of another package, which a file cannot
            contain, and none is given. If the file of the symbol contains
            another network by now: the copy in the checkpoint is loaded. If a
            file is found under a temporary name because the process that saved
            it was killed.
        """
        checkpoint = Checkpoint(prefix, epoch, load_optimizer_states)
        module = cls(checkpoint.symbol, **checkpoint.constructor_arguments(update_freq, kwargs))
        module._resume_from(checkpoint)
        return module

    def _resume_from(self, checkpoint):
        self._arg_params, self._aux_params = checkpoint.arg_params, checkpoint.aux_params
        self.params_initialized = True
        self._preload_opt_states = checkpoint.states
        facts = checkpoint.facts or {'num_update': 0, 'optimizer': None, 'step_size': None,
                                     'snapshot': None}
        self._snapshot.num_update = facts['num_update']
        self._loaded = Loaded(
            snapshot=facts['snapshot'] and (facts['snapshot'], checkpoint.arrays),
            counts=facts['optimizer'], continues_counts=checkpoint.with_states,
            step_size=facts['step_size'], check_states=checkpoint.check_states)

    def _restore_snapshot(self):
        """Activate the snapshot of a checkpoint once the module is bound for training."""
        if self._loaded.snapshot is None:
            return
        facts, arrays = self._loaded.snapshot
        full_gradient = self._new_full_gradient()
        lacking = full_gradient.unpack(facts, functools.partial(arrays_of_kind, arrays=arrays))
        if lacking:
            self._loaded = self._loaded._replace(snapshot=None)
            self._warn_of_dropped_snapshot(lacking)
            return
        self._mod_aux.set_params(*({name: mx.nd.array(value, dtype=value.dtype)
                                    for name, value in arrays_of_kind(kind, arrays).items()}
                                   for kind in ('arg', 'aux')))
        self._snapshot.replace(full_gradient, facts['epoch'], facts['taken_at'])
        self._snapshot.is_stale = facts.get('is_stale', False)
        self._loaded = self._loaded._replace(snapshot=None)

    def _restore_update_counts(self, default_opt, optimizer, optimizer_params):
        """Continue the update counts of a checkpoint, unless `begin_num_update` is given."""
        continues, counts = self._loaded.continues_counts, self._loaded.counts
        self._loaded = self._loaded._replace(continues_counts=False)
        if not continues or not counts:
            return
        if isinstance(optimizer, str):
            begins = 'begin_num_update' in dict(optimizer_params)
        else:
            begins = optimizer.begin_num_update > 0
        if not begins:
            set_update_counts(default_opt, counts,
                              {0, *(context.device_id for context in self._context)})

    def _step_size(self):
        """Return the rate and the curvature of a BarzilaiBorwein, None if there is none."""
        rule = self._step_size_rule
        if rule is None:
            return self._loaded.step_size
        return {'rate': rule.rate, 'curvature': rule.curvature}

    def _restore_step_size(self, rule):
        """Continue with the rate of a checkpoint, or restart."""
        loaded, self._loaded = self._loaded.step_size, self._loaded._replace(step_size=None)
        if isinstance(rule, BarzilaiBorwein):
            rule.restart()
            if loaded:
                rule.rate, rule.curvature = loaded['rate'], loaded['curvature']

    def _update_counts(self):
        """Return the optimizer's update counts; compute them if it is on the servers."""
        if not self._servers_hold_states:
            return update_counts(self._optimizer)
        counts, num_update = self._membership.counts_at_start
        steps = self._snapshot.num_update - num_update
        if is_asynchronous(self._kvstore):
            steps *= self._kvstore.num_workers  # each worker's push is an update
        begin = self._optimizer.begin_num_update
        return {'num_update': counts['num_update'] + steps,
                'by_name': {name: counts['by_name'].get(name, begin) + steps
                            for name in self._trainable}}

    @property
    def _servers_hold_states(self):
        return self._update_on_kvstore and is_distributed(self._kvstore)

    @property
    def _copies(self):
        """Number of devices that update their own weights; 0 if a KVStore updates them."""
        return 0 if self._update_on_kvstore else self._ctx_len

    def load_optimizer_states(self, fname):
        """Load the optimizer's states.

        Parameters
        ----------
        fname : str
            File that `save_optimizer_states` wrote. It is unpickled: load only
            files that you trust.

        Raises
        ------
        ValueError
            If the file is truncated, contains no states, or contains states of
            other shapes than those of the parameters and the optimizer. Also if
            it belongs to the loaded checkpoint and was written again since.

        Warns
        -----
        UserWarning
            If the states belong to none of the parameters. This happens with
            files of a plain Module with another kind of KVStore.
        """
        if not self.optimizer_initialized or self._servers_hold_states:
            super().load_optimizer_states(fname)  # raises an error
            return
        if fname == self._preload_opt_states:
            self._loaded.check_states()
        updater = updater_of(self)
        with unchanged_on_error(updater):
            with errors_of_states(fname):
                super().load_optimizer_states(fname)
            if self._loaded.counts and fname == self._preload_opt_states:
                updater.states = states_in_layout(updater.states, self._param_names, self._copies,
                                                  self._loaded.counts['copies'])
                updater.states_synced = dict.fromkeys(updater.states, False)
            self._check_states_fit(updater.states, fname)

    def _check_states_fit(self, states, fname):
        """Raise a ValueError if a step with these states would fail."""
        weights = executor_group.parameters(self)
        keys = {number * self._copies + device if self._copies else name: (name, device)
                for number, name in enumerate(self._param_names)
                for device in range(self._copies or 1)}
        if states and not keys.keys() & states.keys():
            self._warn_once('%s holds no states of the parameters of this module, as it was saved '
                            'by another kind of KVStore or module: they begin anew' % fname)
        for key, (name, device) in keys.items():
            if key in states and not state_fits(states[key], self._optimizer, key,
                                                weights[name][device]):
                raise ValueError('%s holds states of other parameters, of another optimizer or of '
                                 'other arguments of it: that of %s does not fit' % (fname, name))

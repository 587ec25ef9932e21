"""How a module is saved with its snapshot, and made again."""

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
    """What a checkpoint has that waits for a module to be bound, and for its optimizer.

    Attributes
    ----------
    snapshot : tuple of (dict, dict), optional
        Facts and arrays of a snapshot, for a module that is bound for training.
    counts : dict, optional
        The optimizer's counts of updates.
    goes_on_counting : bool
        Whether the next optimizer is to go on from these.
    step_size : dict, optional
        The rate of a BarzilaiBorwein, and what bounds it.
    check_states : callable
        Checks that the file of the optimizer's states is still that of the
        checkpoint.
    """

    snapshot: Optional[tuple] = None
    counts: Optional[dict] = None
    goes_on_counting: bool = False
    step_size: Optional[dict] = None
    check_states: Callable = lambda: None


class SnapshotCheckpoints:
    """Save and load an SVRGModule, which this is a part of."""

    def save_checkpoint(self, prefix, epoch, save_optimizer_states=False, remove_amp_cast=True):
        """Save the module, with all that a training needs to go on as if never stopped.

        Module's own files, which plain ``Module.load`` reads, and
        ``prefix-%04d.svrg`` beside them with the snapshot, the full gradient
        and the counts of updates. All files are written whole or not at all.

        Parameters
        ----------
        prefix : str
            What the names of the files begin with.
        epoch : int
            What they go on with.
        save_optimizer_states : bool
            Whether to save the optimizer's states too.
        remove_amp_cast : bool
            As in Module.
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
        """Return what writes the states of the optimizer, or warn that nothing can."""
        if self._servers_hold_states:
            self._warn_once('the states of the optimizer are on the servers, and MXNet cannot save '
                            'them: all else is saved. With MXNET_UPDATE_ON_KVSTORE=0 the workers '
                            'hold them')
            return {}
        return {'states': self.save_optimizer_states}

    def _sync_params_from_devices(self):
        """Read the weights back as they are.

        Module takes their mean over the devices, which on three of them need
        not be the weight that all three have.
        """
        super()._sync_params_from_devices()
        if self._kvstore:
            weights, _ = executor_group.weights_of_first_device(self)
            for name, weight in weights.items():
                if not is_row_sparse(weight):
                    weight.astype(self._arg_params[name].dtype).copyto(self._arg_params[name])

    def _checkpoint_of_snapshot(self, update_freq, alpha):
        """Return what SVRG needs to go on, as facts and as arrays."""
        facts = {'update_freq': update_freq, 'alpha': None if callable(alpha) else float(alpha),
                 'num_update': self._snapshot.num_update, 'step_size': self._step_size(),
                 'optimizer': self._loaded.counts, 'snapshot': None}
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
        """Make a module of a checkpoint, of this class or of plain Module.

        Parameters
        ----------
        prefix : str
            What the names of the files begin with.
        epoch : int
            What they go on with.
        load_optimizer_states : bool
            Whether to load the optimizer's states and counts of updates when
            the optimizer is installed. Counts stay out where the user gives
            `begin_num_update`. The states are pickled: load none that you do
            not trust.
        update_freq : int, optional
            By default that of the checkpoint, and 1 for one of plain Module.
        **kwargs
            Further arguments of the constructor. `alpha` is by default that
            of the checkpoint, if it was a number. The number of devices may
            be another than that of the module that was saved.

        Returns
        -------
        SVRGModule
            With the snapshot in force that was so when it was saved.

        Raises
        ------
        FileNotFoundError
            If a file is missing.
        ValueError
            If a file is truncated, foreign, or not of the same checkpoint as
            the others.

        Warns
        -----
        UserWarning
            If the states were on the servers of a KVStore, and so could not
            be saved: with `load_optimizer_states` only the counts are loaded.
            If `alpha` was a schedule, which a file cannot hold, and none is
            given. If the file of the symbol has another network by now: that
            of the checkpoint is loaded. If a file is found under another name,
            since the process that saved it was stopped too early.
        """
        checkpoint = Checkpoint(prefix, epoch, load_optimizer_states)
        module = cls(checkpoint.symbol, **checkpoint.constructor_arguments(update_freq, kwargs))
        module._go_on_from(checkpoint)
        return module

    def _go_on_from(self, checkpoint):
        self._arg_params, self._aux_params = checkpoint.arg_params, checkpoint.aux_params
        self.params_initialized = True
        self._preload_opt_states = checkpoint.states
        facts = checkpoint.facts or {'num_update': 0, 'optimizer': None, 'step_size': None,
                                     'snapshot': None}
        self._snapshot.num_update = facts['num_update']
        self._loaded = Loaded(
            snapshot=facts['snapshot'] and (facts['snapshot'], checkpoint.arrays),
            counts=facts['optimizer'], goes_on_counting=checkpoint.with_states,
            step_size=facts['step_size'], check_states=checkpoint.check_states)

    def _restore_snapshot(self):
        """Put the snapshot of a checkpoint in force, once the module is bound for training."""
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
        """Go on from a checkpoint's counts, unless the user has given where to begin."""
        goes_on, counts = self._loaded.goes_on_counting, self._loaded.counts
        self._loaded = self._loaded._replace(goes_on_counting=False)
        if not goes_on or not counts:
            return
        if isinstance(optimizer, str):
            begins = 'begin_num_update' in dict(optimizer_params)
        else:
            begins = optimizer.begin_num_update > 0
        if not begins:
            set_update_counts(default_opt, counts,
                              {0, *(context.device_id for context in self._context)})

    def _step_size(self):
        """Return the rate that the last two snapshots gave, and what bounds it."""
        rule = self._step_size_rule
        if rule is None:
            return self._loaded.step_size
        return {'rate': rule.rate, 'curvature': rule.curvature}

    def _restore_step_size(self, rule):
        """Go on with the rate of a checkpoint, or begin anew."""
        loaded, self._loaded = self._loaded.step_size, self._loaded._replace(step_size=None)
        if isinstance(rule, BarzilaiBorwein):
            rule.restart()
            if loaded:
                rule.rate, rule.curvature = loaded['rate'], loaded['curvature']

    def _update_counts(self):
        """Read the optimizer's counts of updates, or tell what they are on the servers."""
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
        """Devices that update weights of their own; 0 where a KVStore does."""
        return 0 if self._update_on_kvstore else self._ctx_len

    def load_optimizer_states(self, fname):
        """Load the optimizer's states; see ``Module.load_optimizer_states``.

        Parameters
        ----------
        fname : str
            A file of `save_optimizer_states`. It is unpickled: load none that
            you do not trust.

        Raises
        ------
        ValueError
            If the file is truncated or holds no states, or some whose shapes
            do not fit the parameters and the optimizer, or is that of a
            checkpoint which was loaded and has been saved anew since.

        Warns
        -----
        UserWarning
            If the states are of none of the parameters, as those of a plain
            Module whose KVStore was of another kind.
        """
        if not self.optimizer_initialized or self._servers_hold_states:
            super().load_optimizer_states(fname)  # which refuses it
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
        """Raise a ValueError where the optimizer would stumble in the middle of a step."""
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

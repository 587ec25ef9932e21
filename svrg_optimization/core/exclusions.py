"""Features that exclude each other, and why: the table of all such pairs."""

from collections import ChainMap
from itertools import product

SERVERS = 'servers that update the weights'

# (features, what is allowed, the features with which they are not, why)
EXCLUSIONS = (
    # Settings
    (('alpha of 0',), 'alpha must not be 0', ('tol', 'newton_cg'),
     'there is no full gradient then'),
    (('full_grad_batches', 'batches'), '%s must be None', ('tol', 'newton_cg'),
     'samples are noise'),
    (('tol',), 'tol must be None', ('an asynchronous kvstore',),
     'its workers do not wait for each other'),
    (('proximal',), 'proximal must be None', (SERVERS,),
     "they have parts of large weights (they update in 'dist_async', and with "
     'MXNET_UPDATE_ON_KVSTORE=1)'),
    (('proximal',), 'proximal must be None', ('a borrowed optimizer',),
     'that has the operators of its own module'),
    # The optimizer
    (('steps of several rates',), 'optimizer must be newton_cg, or sgd without momentum,',
     ('proximal',), 'operators need steps of one rate'),
    (('learning_rate', 'lr_scheduler', 'clip_gradient'), '%s must not be given', ('newton_cg',),
     'it makes no steps'),
    (('another learning_rate',), 'learning_rate must not be set',
     ('newton_cg', 'lr_scheduler', SERVERS), 'it would have no effect'),
    (('other parameters',), 'shared_module must have the same parameters', ('newton_cg',),
     'it knows them by their numbers'),
    (('a plain shared_module',), 'shared_module must be an SVRGModule',
     ('a distributed kvstore', 'an optimizer of Horovod'), 'others have no keys of full gradients'),
    # The KVStore
    ((SERVERS,), 'kvstore must leave the updates to the workers', ('newton_cg',),
     'it moves their weights (servers update with MXNET_UPDATE_ON_KVSTORE=1, in dist_async and for '
     'row_sparse weights: unset the variable, or choose another optimizer)'),
    (('load_optimizer_states',), 'load_optimizer_states must be False', (SERVERS,),
     'they hold the states (with MXNET_UPDATE_ON_KVSTORE=0 workers do)'),
    (('update_on_kvstore',), 'update_on_kvstore must be None or False',
     ('a distributed kvstore', 'proximal', 'newton_cg'), 'the workers update the weights'),
    (('compression_params',), 'compression_params must be None',
     ('a distributed kvstore', 'an SVRGTrainer'), 'it would compress the full gradient too'),
    (('an asynchronous kvstore',), "kvstore must be 'dist_sync' or of one process",
     ('an SVRGTrainer',), 'a snapshot needs weights that all workers share'),
    (('MXNET_UPDATE_ON_KVSTORE=0',), 'MXNET_UPDATE_ON_KVSTORE must be 1',
     ('an asynchronous kvstore',), 'its workers do not wait for each other'),
    # row_sparse arrays
    (('row_sparse parameters',), 'params must be dense', ('an SVRGTrainer',),
     'only an SVRGModule trains others'),
    (('row_sparse arrays',), 'parameters and gradients must be dense', ('Horovod',),
     'it sums dense arrays'),
    (('row_sparse gradients of dense parameters',), 'gradients must be dense',
     ('a distributed kvstore',), 'servers add others to row_sparse parameters alone'),
    (('row_sparse gradients to be summed',), 'gradients must be dense',
     ('a kvstore that updates no weights',), 'it would sum others wrongly (it updates the weights '
     'with MXNET_UPDATE_ON_KVSTORE=1, and no array of more than 2**24 elements)'),
)


def check_together(*features):
    """Raise a ValueError if features exclude each other.

    Each argument is a dict from feature to what the user gave. What is falsy is not used.
    """
    given = ChainMap(*features)
    for kinds, allowed, others, why in EXCLUSIONS:
        for feature, other in product(filter(given.get, kinds), filter(given.get, others)):
            raise ValueError('%s with %s, as %s, and not %s' % (
                allowed % feature if '%' in allowed else allowed, other, why, given[feature]))


def row_sparse(names):
    """Return what users read of row_sparse arrays; '' without any."""
    return names and 'row_sparse, as ' + ', '.join(names)

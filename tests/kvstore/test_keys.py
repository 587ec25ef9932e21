"""Names of a module's keys, none of which may be that of a parameter or of another key."""

import pytest

from svrg_optimization.kvstore.keys import KVStoreKeys


@pytest.mark.parametrize('names', [
    ['w'], ['w', 'w_full'], ['w', 'w_full', 'w_full_full'], ['w_full_full', 'w_full', 'w'],
    ['w', 'w_full', 'w_full_full', 'w_full_full_full'],
    ['svrg_gathered', 'svrg_gathered_gathered', 'svrg_first', 'svrg_first_first', 'svrg_total'],
    ['svrg', 'svrg_full', 'svrg_total_total', 'svrg_total']])
def test_no_key_has_the_name_of_another(names):
    keys = KVStoreKeys(names, names)
    found = [*names, *keys.full.values(), keys.gathered, keys.first, keys.total]
    assert len(set(found)) == len(found) == 2 * len(names) + 3
    assert all(key.startswith(name + '_full') for name, key in keys.full.items())


@pytest.mark.parametrize('names, keys', [
    (['w', 'b'], ['w_full', 'b_full']), (['w', 'w_full'], ['w_full_full', 'w_full_full_full']),
    (['fullyconnected0_weight', 'full'], ['fullyconnected0_weight_full', 'full_full']),
    (['w_full', 'w'], ['w_full_full', 'w_full_full_full']),
    (['w', 'w_full_full', 'w_full'], ['w_full_full_full', 'w_full_full_full_full',
                                      'w_full_full_full_full_full'])])
def test_each_full_gradient_has_a_key_of_its_own(names, keys):
    assert KVStoreKeys(names, names).full == dict(zip(names, keys))

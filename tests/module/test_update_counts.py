"""Counts of updates by servers, which a worker cannot read."""

from types import SimpleNamespace

import pytest

from svrg_optimization.module.workers import counts_of_updates


@pytest.mark.parametrize('kind, updates', [
    ('dist_sync', 5), ('dist_device_sync', 5), ('dist_async', 15), ('dist_async_device', 15)])
def test_servers_count_the_push_of_each_worker_where_these_do_not_wait(kind, updates):
    """Five steps of this worker, of three, since it joined after 40 updates."""
    module = SimpleNamespace(_kvstore=SimpleNamespace(type=kind, num_workers=3),
                             _update_on_kvstore=True, _trainable=['w', 'b'],
                             _snapshot=SimpleNamespace(num_update=12),
                             _counts_at_start=({'num_update': 40, 'counts': {'w': 38}}, 7),
                             _optimizer=SimpleNamespace(begin_num_update=30))
    assert counts_of_updates(module) == {
        'num_update': 40 + updates, 'counts': {'w': 38 + updates, 'b': 30 + updates}}

"""How a job of Horovod ends when a rank is killed, and how it goes on."""

import pytest

from cluster import assert_ended, horovodrun, needs_horovod
from jobs import TRAIN, assert_resumes, run_to_end, weights

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_horovod]


def test_the_example_ends_with_a_rank_that_is_killed_and_resumes(tmp_path):
    model, whole, epochs = tmp_path / 'model', tmp_path / 'whole', 8

    def start(*arguments, prefix=model):
        return horovodrun(TRAIN, '--kv-store', 'horovod', '--prefix', prefix, '--epochs', epochs,
                          '--batch-size', 10, '--momentum', 0.8, *arguments)

    run_to_end(start(prefix=whole))
    with start('--log-every', 1) as running:
        running.wait_for(r'Epoch\[3\] Batch \[1')
        workers = running.processes()
        assert sorted(workers) == [0, 1]
        workers[1].kill()
        assert running.exit_status(20) != 0
        assert_ended(workers.values(), 0)
    output = assert_resumes(start, model, weights(whole, epochs), epochs, 0)
    assert 'rank 1 of 2: 898 rows' in output, output

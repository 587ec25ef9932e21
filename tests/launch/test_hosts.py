"""Jobs of mpirun on several hosts, which are network namespaces of this machine, and faults."""

import time

import pytest

from cluster import job, started
from jobs import assert_resumes, assert_same_weights, run_to_end, weights
from jobs import training as short_training
from mpi import AS_ROOT, MPIRUN, mpirun
from network import Network, lacking

LACKING = lacking() or ('' if MPIRUN else "Open MPI's mpirun")


def on_several_hosts(test):
    """Mark a test that is skipped where the machine lacks what its hosts need."""
    reason = 'several hosts need %s: CI=true .ci/run installs it' % LACKING
    return pytest.mark.slow(
        pytest.mark.hosts(pytest.mark.skipif(bool(LACKING), reason=reason)(test)))


WORKERS, PROCESSES = 2, 4
EPOCHS = 20  # so many that a fault comes before the end, on a busy machine too
SECONDS_TO_END = 22
DURING = r'Epoch\[2\] Train-accuracy'
SSH = 'ssh -o ServerAliveInterval=2 -o ServerAliveCountMax=2 -F %s'


def training(prefix, *options):
    return short_training(prefix, '--epochs', EPOCHS, *options)


@pytest.fixture(scope='module')
def all_hosts(tmp_path_factory):
    """Three hosts, and the hub, where mpirun runs."""
    with Network(tmp_path_factory.mktemp('network'), 3) as network:
        yield network


@pytest.fixture
def network(all_hosts):
    """The same for each test, after which no process may be left on any host."""
    yield all_hosts
    try:
        wait_until_none_is_left(all_hosts)
    finally:
        for host in all_hosts.hosts:
            all_hosts.set_link(host, 'up')
            all_hosts.kill_all(host)
            all_hosts.boot(host)
        all_hosts.kill_all('hub')


def on_hosts(network, tmp_path, command):
    """Start a job whose scheduler and server are on the first host."""
    file = tmp_path / 'hosts.txt'
    file.write_text('h1 slots=2\nh2 slots=1\nh3 slots=1\n')
    options = ['--hostfile', file, '--prtemca', 'plm_ssh_agent', SSH % network.ssh_config]
    for name, seconds in (('time', 6), ('intvl', 3), ('probes', 2)):
        options += ['--prtemca', 'oob_tcp_keepalive_' + name, seconds]
    return started(network.command('hub', *mpirun(
        PROCESSES, command, *options, role=['--root', '10.77.0.1'])), **AS_ROOT)


def wait_until_none_is_left(network):
    deadline = time.monotonic() + SECONDS_TO_END
    while network.all_processes():
        assert time.monotonic() < deadline, network.all_processes()
        time.sleep(0.1)


def processes_of_role(network, host):
    return [pid for pid, program in network.processes(host).items() if program == 'python']


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    """The last weights of a job on one machine that nothing happened to."""
    prefix = tmp_path_factory.mktemp('undisturbed') / 'model'
    run_to_end(job(*training(prefix), workers=WORKERS))
    return weights(prefix, EPOCHS)


@on_several_hosts
@pytest.mark.parametrize('seconds_down', [0, 2])
def test_a_job_ends_as_on_one_machine(network, tmp_path, undisturbed, seconds_down):
    """It waits for a link that is down for a while."""
    with on_hosts(network, tmp_path, training(tmp_path / 'model')) as running:
        running.wait_for(DURING)
        assert [len(processes_of_role(network, host)) for host in network.hosts] == [2, 1, 1]
        if seconds_down:
            network.set_link('h2', 'down')
            time.sleep(seconds_down)
            network.set_link('h2', 'up')
        assert 'All workers have finished' in run_to_end(running)
    assert_same_weights(weights(tmp_path / 'model', EPOCHS), undisturbed)


def take_link_of_worker_down(network):
    network.set_link('h2', 'down')


def take_link_of_scheduler_down(network):
    network.set_link('h1', 'down')


def reboot(network):
    network.kill_all('h3')
    network.boot('h3')


@on_several_hosts
@pytest.mark.parametrize('fault', [
    take_link_of_worker_down, reboot,
    pytest.param(take_link_of_scheduler_down, marks=pytest.mark.exhaustive)])
def test_a_resumed_job_ends_as_an_undisturbed_one(network, tmp_path, undisturbed, fault):
    def start(*options):
        # With much output some may be on its way, which TCP sends again without keepalives.
        return on_hosts(network, tmp_path, training(tmp_path / 'model', '--log-every', 1, *options))

    with start() as running:
        running.wait_for(DURING)
        fault(network)
        running.exit_status(SECONDS_TO_END)  # it may be 0, as the page says
        assert 'All workers have finished' not in running.output
        wait_until_none_is_left(network)
    for host in network.hosts:
        network.set_link(host, 'up')
    output = assert_resumes(start, tmp_path / 'model', undisturbed, EPOCHS)
    assert 'All workers have finished' in output, output

"""Jobs on several hosts, which are network namespaces of this machine, and faults of a network."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import mxnet
import numpy as np
import pytest
from sklearn.datasets import load_digits

import svrg_optimization
from cluster import job
from jobs import TRAIN, assert_optimal, assert_same_weights, is_running, weights
from network import Network, lacking
from svrg_optimization.launch.agent import SECONDS_TO_KILL, SECONDS_TO_TERMINATE
from svrg_optimization.launch.hosts import HostsError, place, read_hosts

LACKING = lacking()


def on_several_hosts(test):
    """Mark a test that is skipped where the machine lacks what its hosts need."""
    reason = 'several hosts need %s: .ci/run installs it' % LACKING
    return pytest.mark.hosts(pytest.mark.skipif(bool(LACKING), reason=reason)(test))


HOSTS, WORKERS, SERVERS = 4, 4, 2
LINK_TIMEOUT = 6
SECONDS_TO_END = LINK_TIMEOUT + SECONDS_TO_TERMINATE + SECONDS_TO_KILL + 5
EPOCHS, DURING = 5, r'Epoch\[2\] Train-accuracy'


@pytest.fixture(scope='module')
def all_hosts(tmp_path_factory):
    """Four hosts, and the hub."""
    with Network(tmp_path_factory.mktemp('network'), HOSTS) as network:
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


def on_hosts(network, tmp_path, command, *options, hosts=None, workers=WORKERS, servers=SERVERS,
             **environment):
    """Start a job on hosts."""
    file = tmp_path / 'hosts.txt'
    file.write_text('# of the test\n' + ''.join(host + '\n' for host in hosts or network.hosts))
    launcher = network.command('hub', sys.executable, '-m', 'svrg_optimization.launch', '--hosts',
                               str(file), '--ssh', 'ssh -F %s' % network.ssh_config, *options)
    return job(command, workers, servers, launcher, **environment)


def training(prefix, *options):
    """Return the command that trains on the digits, in batches that are small and so many."""
    return [sys.executable, str(TRAIN), '--prefix', str(prefix), '--epochs', str(EPOCHS),
            '--batch-size', '5', '--learning-rate', '0.02', *options]


def assert_success(running):
    status = running.exit_status()
    assert status == 0, running.output
    assert 'Traceback' not in running.output, running.output


def wait_until_none_is_left(network, seconds=SECONDS_TO_END):
    deadline = time.monotonic() + seconds
    while network.all_processes():
        assert time.monotonic() < deadline, network.all_processes()
        time.sleep(0.1)


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    """The last weights of a job on one machine that nothing happened to."""
    prefix = tmp_path_factory.mktemp('undisturbed') / 'model'
    with job(training(prefix), WORKERS, SERVERS) as running:
        assert_success(running)
    return weights(prefix, EPOCHS)


@on_several_hosts
@pytest.mark.slow
def test_synchronous_job_ends_as_on_one_machine(network, tmp_path, undisturbed):
    with on_hosts(network, tmp_path, training(tmp_path / 'model')) as running:
        assert_success(running)
    assert_same_weights(weights(tmp_path / 'model', EPOCHS), undisturbed)
    names = ['server 0 on h1', 'server 1 on h2', 'worker 0 on h3', 'worker 1 on h4',
             'worker 2 on h1', 'worker 3 on h2']
    assert sorted(running.pids()) == ['scheduler', *names]
    for name in names[2:]:
        assert re.search(r'^\[%s\] Epoch\[4\] Train-accuracy' % name, running.output, re.MULTILINE)


@on_several_hosts
@pytest.mark.slow
def test_asynchronous_job_reaches_the_optimum(network, tmp_path):
    l2, epochs = 1.0, 40
    command = [sys.executable, str(TRAIN), '--prefix', str(tmp_path / 'model'), '--kv-store',
               'dist_async', '--l2', str(l2), '--epochs', str(epochs)]
    with on_hosts(network, tmp_path, command) as running:
        assert_success(running)
    features, labels = load_digits(return_X_y=True)
    used = np.random.RandomState(0).permutation(len(labels))[:len(labels) // WORKERS * WORKERS]
    assert_optimal(weights(tmp_path / 'model', epochs), features[used] / 16, labels[used], l2)


@on_several_hosts
@pytest.mark.slow
def test_a_job_waits_for_a_link_that_is_down_for_two_seconds(network, tmp_path, undisturbed):
    """The job waits, and goes on."""
    with on_hosts(network, tmp_path, training(tmp_path / 'model')) as running:
        running.wait_for(DURING)
        network.set_link('h1', 'down')
        before = last_epoch(running)
        time.sleep(2)
        assert last_epoch(running) <= before + 1
        network.set_link('h1', 'up')
        assert_success(running)
    assert_same_weights(weights(tmp_path / 'model', EPOCHS), undisturbed)


def last_epoch(running):
    return max(map(int, re.findall(r'Epoch\[(\d+)\] Train', running.output)))


def take_link_down(network, running):
    network.set_link('h2', 'down')
    return ('h2: does not respond: nothing has come from it for %d seconds: ending the others'
            % LINK_TIMEOUT)


def reboot(network, running):
    network.kill_all('h3')
    return r'h3.*: ending the others'


def kill_launcher(network, running):
    running.send(signal.SIGKILL)


def kill_launcher_and_take_link_down(network, running):
    network.set_link('h2', 'down')
    running.send(signal.SIGKILL)


def kill_worker(network, running):
    os.kill(running.pids()['worker 1 on h4'], signal.SIGKILL)
    return r'worker 1 on h4 \(process \d+\) was killed by SIGKILL: ending the others'


def kill_agent(network, running):
    """All that it has started dies with it."""
    parent = Path('/proc/%d/stat' % running.pids()['worker 1 on h4']).read_text()
    os.kill(int(parent.rpartition(')')[2].split()[1]), signal.SIGKILL)
    return 'h4: the connection broke.*: ending the others'


def stop_job(network, running):
    running.send(signal.SIGTERM)
    return 'received SIGTERM: ending all'


@on_several_hosts
@pytest.mark.slow
@pytest.mark.parametrize('fault', [take_link_down] + [
    pytest.param(fault, marks=pytest.mark.exhaustive)
    for fault in (reboot, kill_launcher, kill_launcher_and_take_link_down, kill_worker, kill_agent,
                  stop_job)])
def test_a_resumed_job_ends_as_an_undisturbed_one(network, tmp_path, undisturbed, fault):
    """All processes end on all hosts; the resumed job ends where an undisturbed one does."""
    command = training(tmp_path / 'model')
    with on_hosts(network, tmp_path, command, '--link-timeout', str(LINK_TIMEOUT)) as running:
        running.wait_for(DURING)
        says = fault(network, running)
        assert running.exit_status(SECONDS_TO_END) != 0
        assert says is None or re.search(r'^\[launcher\] ' + says, running.output, re.MULTILINE), (
            running.output)
        wait_until_none_is_left(network)
    assert not Path('%s-%04d.params' % (tmp_path / 'model', EPOCHS)).exists()
    network.set_link('h2', 'up')
    if fault is reboot:
        network.boot('h3')
    with on_hosts(network, tmp_path, [*command, '--resume']) as running:
        assert_success(running)
    assert re.search('from epoch [2-7] on', running.output), running.output
    assert_same_weights(weights(tmp_path / 'model', EPOCHS), undisturbed)


@on_several_hosts
@pytest.mark.slow
@pytest.mark.exhaustive
def test_agents_end_the_job_of_a_launcher_that_stands_still(network, tmp_path):
    """Nothing closes the connections, and the agents end all."""
    with on_hosts(network, tmp_path, ['sleep', '1000'], '--link-timeout', '4') as running:
        running.wait_for('worker 3 on h2 is process')
        pids = list(running.pids().values())
        running.send(signal.SIGSTOP)
        deadline = time.monotonic() + SECONDS_TO_END
        while any(map(is_running, pids)):
            assert time.monotonic() < deadline, running.output
            time.sleep(0.1)
        running.send(signal.SIGCONT)
        assert running.exit_status(SECONDS_TO_END) != 0


@on_several_hosts
@pytest.mark.slow
def test_output_that_is_read_late_is_whole(network, tmp_path):
    """To wait for the reader is no silence of the agents, or of the launcher."""
    lines = 100000
    script = 'import os; [print("line", i, flush=True) for i in range(%d)]; os._exit(7)' % lines
    (tmp_path / 'hosts.txt').write_text('h1\n')
    command = network.command('hub', sys.executable, '-m', 'svrg_optimization.launch', '-n', '1',
                              '--hosts', str(tmp_path / 'hosts.txt'), '--link-timeout', '4',
                              '--ssh', 'ssh -F %s' % network.ssh_config, '--', 'python', '-c',
                              script)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        time.sleep(6)
        printed = running.stdout.read().splitlines()
        assert running.wait(30) == 7
    assert [line for line in printed if line.startswith('[worker 0 on h1] ')] == [
        '[worker 0 on h1] line %d' % i for i in range(lines)]


TELL = ('import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)])); '
        'os._exit(7)')
ODD = 'a \'b\' "c" $HOME `id` \\ * é\n!'


@on_several_hosts
def test_a_worker_gets_environment_directory_and_arguments(network, tmp_path, monkeypatch):
    folder = tmp_path / ODD.strip().replace('\n', ' ')
    folder.mkdir()
    monkeypatch.chdir(folder)
    given = {'MXNET_ODD': ODD, 'PS_ODD': ODD, 'MY_ODD': ODD, 'MY_SECRET': ODD, 'PORT': '1',
             'DMLC_NODE_HOST': '10.0.0.1'}
    options = ['--env', 'MY_ODD', '--env', 'MY_OWN=x=y ' + ODD, '--env', 'MY_O*']
    with on_hosts(network, tmp_path, ['python', '-c', TELL, ODD], *options, workers=1, servers=1,
                  **given) as running:
        assert running.exit_status() == 7
    line, = re.findall(r'^\[worker 0 on h2\] (\[.*)$', running.output, re.MULTILINE)
    directory, arguments, environment = json.loads(line)
    assert directory == str(folder) and arguments == [ODD]
    assert environment.items() >= {
        'MXNET_ODD': ODD, 'PS_ODD': ODD, 'MY_ODD': ODD, 'MY_OWN': 'x=y ' + ODD,
        'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.77.0.254',
        'DMLC_NODE_HOST': '10.77.0.2', 'DMLC_NUM_WORKER': '1', 'DMLC_NUM_SERVER': '1'}.items()
    assert not {'MY_SECRET', 'PORT'} & set(environment)
    assert environment['PATH'].startswith(str(Path(sys.executable).parent) + os.pathsep)


@on_several_hosts
@pytest.mark.slow
def test_addresses_that_somebody_chose_are_kept(network, tmp_path):
    with on_hosts(network, tmp_path, ['python', '-c', TELL], '--scheduler-host', '127.0.0.1',
                  workers=1, servers=1, DMLC_INTERFACE='eth0') as running:
        assert running.exit_status() == 7
    assert '"DMLC_PS_ROOT_URI": "127.0.0.1"' in running.output
    assert '"DMLC_INTERFACE": "eth0"' in running.output and 'DMLC_NODE_HOST' not in running.output


@on_several_hosts
@pytest.mark.slow
def test_a_directory_that_a_host_lacks_is_named(network, tmp_path, monkeypatch):
    folder, empty = tmp_path / 'outer' / 'inner', tmp_path / 'empty'
    folder.mkdir(parents=True)
    empty.mkdir()
    network.kill_all('h2')
    network.boot('h2', {folder.parent: empty})
    monkeypatch.chdir(folder)
    with on_hosts(network, tmp_path, ['true']) as running:
        assert running.exit_status(30) == 1
    assert "[launcher] h2: [Errno 2] No such file or directory: '%s'" % folder in running.output


@on_several_hosts
@pytest.mark.slow
@pytest.mark.parametrize('host, options, says', [
    ('nobody', ['--connect-timeout', '2'],
     '(h1, )?nobody: (cannot be reached .*timed out|no answer within 2 seconds)'),
    ('no.such.host.invalid', [], 'no.such.host.invalid: cannot be reached .*resolve'),
    ('h2', ['--ssh', '/no/such/ssh', '--scheduler-host', '10.77.0.254'],
     'h1: ssh cannot be started: .*/no/such/ssh'),
    ('h2', ['--python', '/no/such/python'], 'h[12]: cannot run the Python /no/such/python'),
    ('h2', ['--scheduler-host', '10.0.0.1'], 'the scheduler\'s host must have an IPv4 address of '
                                             'this machine, not 10.0.0.1')])
def test_a_host_that_cannot_be_reached_is_named(network, tmp_path, host, options, says):
    with on_hosts(network, tmp_path, training(tmp_path / 'model'), *options,
                  hosts=['h1', host]) as running:
        assert running.exit_status(20) == 1
    assert re.search(r'^\[launcher\] ' + says, running.output, re.MULTILINE), running.output
    assert not running.pids()


@on_several_hosts
@pytest.mark.slow
def test_a_host_whose_address_is_not_known_is_named(network, tmp_path):
    with on_hosts(network, tmp_path, ['true'], hosts=['no.such.host.invalid']) as running:
        assert running.exit_status(20) == 1
    assert 'no.such.host.invalid: its address is not known' in running.output


@on_several_hosts
@pytest.mark.slow
@pytest.mark.parametrize('package', [svrg_optimization, mxnet], ids=['own', 'mxnet'])
def test_a_host_with_another_version_is_named(network, tmp_path, package):
    name = '__init__.py' if package is svrg_optimization else 'libinfo.py'
    file = Path(package.__file__).with_name(name)
    text = file.read_text(encoding='utf-8')
    other = text.replace(package.__version__, '0.0.1')
    assert other != text
    (tmp_path / name).write_text(other, encoding='utf-8')
    network.kill_all('h2')
    network.boot('h2', {file: tmp_path / name})
    with on_hosts(network, tmp_path, training(tmp_path / 'model')) as running:
        assert running.exit_status(30) == 1
    assert ('[launcher] all hosts must have the same version of %s, not %s (this machine, h1, h3, '
            'h4) and 0.0.1 (h2)\n' % (package.__name__, package.__version__) in running.output)
    assert not running.pids()


@on_several_hosts
@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_benchmark_on_hosts_counts_the_bytes_of_the_model():
    """The bytes are those of the model; with headers they are a few per cent more."""
    script = TRAIN.parents[1] / 'benchmarks' / 'distributed.py'
    printed = subprocess.run(
        [sys.executable, str(script), '--link', '200', '--workers', '2', '--servers', '1', '2',
         '--rows', '640', '--times', '3'], check=True, stdout=subprocess.PIPE, text=True,
        timeout=240).stdout
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in printed.splitlines()
            if line.startswith('| dist')]
    assert [row[:3] + row[4:5] + row[6:7] + row[8:9] for row in rows] == [
        [kind, '2', servers, snapshot, barriers, step]
        for kind, barriers in (('dist_sync', '0'), ('dist_async', '2'))
        for servers, snapshot, step in (('1', '391', '261'), ('2', '195', '130'))]
    for row in rows:
        assert 3 < float(row[5]) < 3.4 and 2 < float(row[9]) < 2.3


@pytest.mark.parametrize('text, says', [
    ('', 'at least one host'), ('# h1\n\n', 'at least one host'),
    ('h1\nh1 slots=2\n', 'line 2: the host h1 must be there once only'),
    ('h1 slots=0\n', "line 1: .*not 'h1 slots=0'"),
    ('h1 slots=-1\n', 'slots=N with N of 1 or more'),
    ('h1 slots=two\n', "not 'h1 slots=two'"), ('h1 slots=2 x\n', "not 'h1 slots=2 x'"),
    ('h1 max_slots=2\n', "not 'h1 max_slots=2'"), ('slots=2\n', "not 'slots=2'"),
    ('-oProxyCommand=x\n', "not '-oProxyCommand=x'")])
def test_a_bad_file_of_hosts_is_refused(tmp_path, text, says):
    file = tmp_path / 'hosts.txt'
    file.write_text(text)
    with pytest.raises(HostsError, match=says):
        read_hosts(file)


@pytest.mark.process
def test_launcher_names_a_bad_file_of_hosts(tmp_path):
    file = tmp_path / 'hosts.txt'
    file.write_text('h1 slots=0\n')
    with job(['true'], launcher=[sys.executable, '-m', 'svrg_optimization.launch', '--hosts',
                                 str(file)]) as running:
        assert running.exit_status(15) == 2
    assert 'error: argument --hosts: %s' % file in running.output


@pytest.mark.process
def test_a_missing_file_of_hosts_is_named(tmp_path):
    with job(['true'], launcher=[sys.executable, '-m', 'svrg_optimization.launch', '--hosts',
                                 str(tmp_path / 'none')]) as running:
        assert running.exit_status(15) == 2
    assert 'argument --hosts: [Errno 2] No such file' in running.output


def test_hosts_take_processes_in_turn(tmp_path):
    file = tmp_path / 'hosts.txt'
    file.write_text('a  slots=1 # small\n\n# none here\nuser@b\nc slots=3\n')
    hosts = read_hosts(file)
    assert hosts == {'a': 1, 'user@b': None, 'c': 3}
    assert place(hosts, 9) == ['a', 'user@b', 'c', 'user@b', 'c', 'user@b', 'c', 'user@b', 'user@b']
    assert place({'a': 2, 'b': 1}, 3) == ['a', 'b', 'a']
    with pytest.raises(HostsError, match='a slot for each of the 4 .*, and have 3'):
        place({'a': 2, 'b': 1}, 4)

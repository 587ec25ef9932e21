"""Run a distributed training on this machine: a scheduler, servers and workers.

    python -m svrg_optimization.launch -n 2 -s 1 -- python train.py

Starts the command once for each worker. What a process prints appears with its role in
front. If any process dies, all others are ended and the exit status is not 0; if all
workers succeed, it is 0, and the launcher ends the scheduler and the servers. The workers
share the cores: each gets OMP_NUM_THREADS for its part, unless you set it. Workers are
numbered as they are started; the rank that a worker reads from its KVStore may be another
number. On several hosts mpirun or Slurm starts python -m svrg_optimization.launch.role.
"""

import argparse
import os
import signal
import sys

from .job import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Job, prctl, processes_below, signal_all


def parse():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog='python -m svrg_optimization.launch', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-n', '--workers', type=int, default=2)
    parser.add_argument('-s', '--servers', type=int, default=1)
    parser.add_argument('--env', metavar='NAME=VALUE', action='append', default=[],
                        help='another variable; everybody here can see it in the list of processes')
    parser.add_argument('--python', metavar='PATH', default=sys.executable,
                        help="Python of scheduler and servers, also first in the workers' PATH")
    parser.add_argument('--hosts', help=argparse.SUPPRESS)
    parser.add_argument('command', nargs='+', help='what each worker runs')
    args = parser.parse_args()
    if args.hosts is not None:
        parser.error('argument --hosts: left in 2.0.0; on several hosts start '
                     'python -m svrg_optimization.launch.role by mpirun or Slurm')
    if min(args.workers, args.servers) < 1:
        parser.error('arguments -n and -s: must be 1 or more, not %d and %d'
                     % (args.workers, args.servers))
    for text in args.env:
        name, given, _ = text.partition('=')
        if not (name and given):
            parser.error('argument --env: must be NAME=VALUE, not %s' % text)
    return args


def handle(handler):
    """Set what follows a signal that asks for an end, if it is not ignored, as below nohup."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def stop(number, _):
    """End the job when a signal comes, and at once when the next one comes."""
    handle(signal.SIG_DFL)
    sys.exit(128 + number)


def main():
    """Run the job in a process below this one: if either is killed, the other ends all."""
    args = parse()
    job = os.fork()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not job:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.setsid()  # so that a terminal sends its signals to the launcher alone
        handle(stop)
        sys.exit(Job(args).run())
    handle(lambda number, _: os.kill(job, number))
    status = os.waitpid(job, 0)[1]
    signal_all(signal.SIGKILL, processes_below())
    sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == '__main__':
    main()

"""Run a distributed training: a scheduler, servers and workers.

    python -m svrg_optimization.launch -n 2 -s 1 -- python train.py
    python -m svrg_optimization.launch -n 4 -s 2 --hosts hosts.txt -- python train.py

Starts the command once for each worker, on this machine or over ssh on the
hosts of a file. What a process prints appears with its role, and its host, in
front. If any process dies, or a host cannot be reached any more, all others are
ended and the exit status is not 0; if all workers succeed, it is 0, and the
launcher ends the scheduler and the servers. The workers on a host share its cores:
each gets OMP_NUM_THREADS for its part, unless you set it. Workers are
numbered as they are started; the rank that a worker reads from its KVStore may
be another number.
"""

import argparse
import os
import shlex
import signal
import sys

from . import output
from .hosts import HostsError, read_hosts
from .job import TRAVELLING, Job, Stopped


def at_least(least):
    """Return a converter of whole numbers that are not below the least."""
    def convert(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError('must be %d or more, not %s' % (least, text))
        return number

    convert.__name__ = 'whole number'
    return convert


def variable(text):
    """Return the argument of --env, if what it names is there."""
    name, given, _ = text.partition('=')
    if not name or not (given or any(sign in name for sign in '*?[') or name in os.environ):
        raise argparse.ArgumentTypeError('must be NAME=VALUE, or the name of a variable that is '
                                         'set, not %s' % text)
    return text


def parse(arguments=None):
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog='python -m svrg_optimization.launch',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-n', '--workers', type=at_least(1), default=2)
    parser.add_argument('-s', '--servers', type=at_least(1), default=1)
    parser.add_argument('--hosts', metavar='FILE',
                        help='a file with one host a line, and slots=N after it where no more '
                             'than N processes may run; servers, then workers, go to the hosts '
                             'in turn (default: all run on this machine)')
    parser.add_argument('--scheduler-host', metavar='ADDRESS',
                        help='IPv4 address of this machine at which the hosts find the scheduler '
                             '(default: that of the interface which routes to them)')
    parser.add_argument('--env', metavar='NAME[=VALUE]', action='append', default=[],
                        type=variable,
                        help='a variable, or a pattern of names, that goes to the hosts too '
                             '(always: %s); may be repeated; everybody on this machine can see '
                             'a VALUE in the list of processes' % ', '.join(TRAVELLING))
    parser.add_argument('--python', default=sys.executable,
                        help='Python on the hosts (default: %(default)s)')
    parser.add_argument('--ssh', metavar='COMMAND', type=shlex.split, default=['ssh'],
                        help='how ssh is called, with options of its own (default: ssh)')
    parser.add_argument('--connect-timeout', metavar='SECONDS', type=at_least(1), default=15,
                        help='for a host to answer at the start (default: %(default)s)')
    parser.add_argument('--link-timeout', metavar='SECONDS', type=at_least(4), default=20,
                        help='for which a host may be silent before the job ends, on its side and '
                             'on this one (default: %(default)s)')
    parser.add_argument('command', nargs='+', help='what each worker runs')
    args = parser.parse_args(arguments)
    if args.hosts is None:
        if args.scheduler_host is not None:
            parser.error('argument --scheduler-host: must not be there without --hosts')
        return args, None
    try:
        return args, read_hosts(args.hosts)
    except (OSError, HostsError) as error:
        parser.error('argument --hosts: %s' % error)


def stop(number, _):
    """End the job when a signal comes, and the launcher at once when the next one comes."""
    set_handler(signal.SIG_DFL)
    raise Stopped(number)


def set_handler(handler):
    """Set what follows a signal that asks for an end, if it is not ignored, as below nohup."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def main():
    """Run the launcher."""
    args, hosts = parse()
    output.start()
    set_handler(stop)
    seconds_to_print = None
    try:
        status = Job(args, hosts).run()
    except HostsError as error:
        output.say(str(error))
        status = 1
    except Stopped as stopped:
        status, seconds_to_print = stopped.code, output.SECONDS_TO_PRINT_THE_REST
    set_handler(signal.SIG_DFL)
    output.wait_until_printed(seconds_to_print)
    sys.exit(status)


if __name__ == '__main__':
    main()

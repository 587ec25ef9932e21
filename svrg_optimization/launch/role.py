"""Take the role in a distributed job that the rank of this process gives.

    mpirun -np 6 ... python -m svrg_optimization.launch.role -s 2 train.py --prefix run/digits

Rank 0 is the scheduler, the next ones are servers, and each other one is a worker, which
runs the script in this process, as ``python train.py`` does. Open MPI, Slurm, PMIx or an
Indexed Job of Kubernetes tells the rank, but the last two not the size. If a process
fails or is lost, all end. If all succeed, rank 0 says so.
"""

import argparse
import atexit
import builtins
import importlib
import os
import re
import signal
import socket
import sys
import time
import types
import zlib
from pathlib import Path

from . import watch
from .job import PORTS, PR_SET_PDEATHSIG, number_of_cores, prctl

RANK_AND_SIZE = (('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'), ('SLURM_PROCID', 'SLURM_NTASKS'),
                 ('PMIX_RANK', ''), ('JOB_COMPLETION_INDEX', ''))
SECONDS_FOR_NAMES, SECONDS_TO_START = 60, 300


def parse():
    """Return the parser, and the arguments of the command line with rank and size."""
    parser = argparse.ArgumentParser(prog='python -m svrg_optimization.launch.role',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    rank, size = next((names for names in RANK_AND_SIZE if names[0] in os.environ), ('', ''))
    parser.add_argument('-s', '--servers', type=int, default=1)
    parser.add_argument('--root', metavar='HOST', default=os.environ.get('DMLC_PS_ROOT_URI'),
                        help='name or IPv4 address of the host of rank 0 (default: DMLC_PS_ROOT_URI'
                             ", Slurm's first host, or 127.0.0.1 if all run on one host)")
    parser.add_argument('--rank', type=int, default=os.environ.get(rank))
    parser.add_argument('--size', type=int, default=os.environ.get(size))
    parser.add_argument('--link-timeout', metavar='SECONDS', type=int, default=20,
                        help='for which a host may be silent (default: %(default)s)')
    parser.add_argument('script')
    parser.add_argument('arguments', nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if None in (args.rank, args.size) or not (
            1 <= args.servers <= args.size - 2 and 0 <= args.rank < args.size):
        parser.error('mpirun, srun or options must give a rank below a size that leaves workers '
                     'beside a scheduler and -s servers, not rank %s, size %s and -s %d'
                     % (args.rank, args.size, args.servers))
    if args.link_timeout < 6:
        parser.error('argument --link-timeout: must be 6 or more, not %d' % args.link_timeout)
    return parser, args


def tried(seconds, kind, function, *arguments):
    """Call a function again and again while it raises an error of a kind; return its value."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return function(*arguments)
        except kind:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def join(parser, args):
    """Set the variables of MXNet for this process; return the connection to rank 0."""
    workers, hosts = args.size - args.servers - 1, int(os.environ.get('SLURM_NNODES', '0'))
    # How many processes this host has at most, 0 if nobody tells.
    here = int(os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE') or (hosts and -(-args.size // hosts)))
    nodes = 'SLURM_JOB_NODELIST' if 'OMPI_COMM_WORLD_RANK' in os.environ else 'SLURM_STEP_NODELIST'
    first = re.sub(r'\[(\w+)[^]]*\]', r'\1', os.environ.get(nodes, '')).split(',')[0]  # n[01-4,7],m
    root = args.root or ('127.0.0.1' if here == args.size else first)
    job = os.environ.get('PMIX_NAMESPACE') or os.environ.get('SLURM_JOB_ID', '')
    port = int(os.environ.get('DMLC_PS_ROOT_PORT', PORTS[zlib.crc32(job.encode()) % len(PORTS)]))
    connection, alone = None, here in (0, args.size)  # as far as anybody tells
    try:
        address = tried(SECONDS_FOR_NAMES, socket.gaierror, socket.gethostbyname, root)
        if not root or (address.startswith('127.') and not alone):
            raise OSError('no address at which the others find it')
        if args.rank == 0:
            socket.create_server((address, port)).close()
            listener = socket.create_server((address, port + 1), backlog=args.size)
            watch.start(watch.over_all, listener, args.link_timeout, workers, args.size - 1)
        else:
            connection = tried(SECONDS_TO_START, OSError, socket.create_connection,
                               (address, port + 1), args.link_timeout)
            watch.over_root(connection, args.link_timeout)
    except OSError as error:
        parser.error('argument --root: must be the address of the host of rank 0, with two free '
                     'ports from DMLC_PS_ROOT_PORT on, not %r with %d (%s)' % (root, port, error))
    os.environ.pop('PORT', None)  # ps-lite would bind it in every process
    os.environ.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port),
                      DMLC_NUM_SERVER=str(args.servers), DMLC_NUM_WORKER=str(workers),
                      DMLC_ROLE=('scheduler' if args.rank == 0 else
                                 'server' if args.rank <= args.servers else 'worker'))
    if address.startswith('127.'):
        os.environ['DMLC_INTERFACE'] = 'lo'
    elif connection and 'DMLC_INTERFACE' not in os.environ:
        os.environ['DMLC_NODE_HOST'] = connection.getsockname()[0]
    if here and args.rank > args.servers:
        threads = str(max(1, number_of_cores() // min(here, workers)))
        threads = os.environ.get('SLURM_CPUS_PER_TASK', threads)
        os.environ.setdefault('OMP_NUM_THREADS', threads)
    return connection


def run(script, arguments):
    """Run a script in this process as Python does."""
    own = types.ModuleType('__main__')
    vars(own).update(__file__=script, __builtins__=builtins)
    sys.modules['__main__'], sys.argv[:] = own, [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    exec(compile(Path(script).read_bytes(), script, 'exec'), vars(own))


def main():
    """Join the job, and take the role."""
    parser, args = parse()
    if 'OMPI_COMM_WORLD_RANK' in os.environ:  # a killed mpirun leaves those of its own host
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = join(parser, args)
    if connection is not None:
        atexit.register(watch.say_bye, connection)  # after all other functions at exit
    try:
        if os.environ['DMLC_ROLE'] == 'worker':
            sys.stdout.reconfigure(line_buffering=True)
            run(args.script, args.arguments)
        else:
            importlib.import_module('mxnet')  # which serves, and exits
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else 1
        if status not in (None, 0):
            atexit.unregister(watch.say_bye)
            if isinstance(error, SystemExit) and 'mxnet' in sys.modules:
                from ..mxnet_repair.kvstore import leave  # noqa: PLC0415
                leave(status)
            raise
    if args.rank == 0:
        watch.has_served.set()
        watch.say_success(args.size - 1)


if __name__ == '__main__':
    main()

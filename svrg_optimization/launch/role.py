"""Take the role in a distributed job that the rank of this process gives.

    mpirun -np 6 ... python -m svrg_optimization.launch.role -s 2 train.py --prefix run/digits

Rank 0 is the scheduler, the next ranks are servers, and each other rank is a worker, which
runs the script in this process, as ``python train.py`` does. Open MPI sets the rank. If a process
fails, mpirun ends all of them. If all succeed, rank 0 says so.
"""

import argparse
import contextlib
import ctypes
import importlib
import os
import re
import runpy
import signal
import socket
import sys
import zlib
from pathlib import Path

from ..mxnet_repair.finder import SWITCH  # if it is off, `has_joined` is not known
from ..mxnet_repair.loader import mend_for_users

PORTS = range(10000, 30000)  # below those that Linux gives to connections
PR_SET_PDEATHSIG = 1


def parse():
    """Return the parser, and the arguments of the command line with rank and size."""
    parser = argparse.ArgumentParser(prog='python -m svrg_optimization.launch.role',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-s', '--servers', type=int, default=1)
    parser.add_argument('--root', metavar='HOST', default=os.environ.get('DMLC_PS_ROOT_URI'),
                        help='name or IPv4 address of the host of rank 0 (default: '
                             'DMLC_PS_ROOT_URI, or 127.0.0.1 if all run on one host)')
    parser.add_argument('script')
    parser.add_argument('arguments', nargs=argparse.REMAINDER)
    args = parser.parse_args()
    args.rank, args.size = (int(os.environ.get('OMPI_COMM_WORLD_' + name, '0'))
                            for name in ('RANK', 'SIZE'))
    if not 1 <= args.servers <= args.size - 2:
        parser.error('mpirun of Open MPI must start at least three processes, a scheduler, -s '
                     'servers and workers, not %d with -s %d' % (args.size, args.servers))
    return parser, args


def take_role(parser, args):
    """Set the variables of MXNet for this process."""
    workers = args.size - args.servers - 1
    here = int(os.environ['OMPI_COMM_WORLD_LOCAL_SIZE'])  # processes of this host
    root = args.root or ('127.0.0.1' if here == args.size else '')
    job = os.environ.get('PMIX_NAMESPACE', '')
    port = int(os.environ.get('DMLC_PS_ROOT_PORT', PORTS[zlib.crc32(job.encode()) % len(PORTS)]))
    try:
        address = socket.gethostbyname(root)
        if not root or (address.startswith('127.') and here < args.size):
            raise OSError('no address at which the others find it')
        if args.rank == 0:
            socket.create_server((address, port)).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:  # which sends nothing
            route.connect((address, port))
            own_address = route.getsockname()[0]
    except OSError as error:
        parser.error('argument --root: must be the address of the host of rank 0, where the port '
                     'DMLC_PS_ROOT_PORT is free, not %r with %d (%s)' % (root, port, error))
    os.environ.pop('PORT', None)  # ps-lite would bind it in every process
    os.environ.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port),
                      DMLC_NUM_SERVER=str(args.servers), DMLC_NUM_WORKER=str(workers),
                      DMLC_ROLE=('scheduler' if args.rank == 0 else
                                 'server' if args.rank <= args.servers else 'worker'))
    if 'DMLC_INTERFACE' not in os.environ:
        os.environ['DMLC_NODE_HOST'] = own_address
    if args.rank > args.servers:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        os.environ.setdefault('OMP_NUM_THREADS', str(max(1, cores // min(here, workers))))


def work(script, arguments):
    """Run the script of a worker."""
    sys.argv[:], sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    sys.stdout.reconfigure(line_buffering=True)
    mend_for_users(SWITCH)
    try:
        runpy.run_path(script, run_name='__main__')
    except SystemExit as error:
        if error.code not in (None, 0):
            from ..mxnet_repair.kvstore import leave  # noqa: PLC0415
            leave(error.code)
    # The scheduler and the servers wait for a worker that has made no KVStore, as with --help.
    from ..mxnet_repair import kvstore  # noqa: PLC0415
    if not kvstore.has_joined and os.environ.get(SWITCH) != '0':
        kvstore.kv_of_mxnet.create('dist_async')


def end_with_mpirun():
    """Let the kernel kill this process when Open MPI's daemon, its parent, is killed."""
    if sys.platform != 'linux':
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have been killed before. A parent's number does not tell: orphans may get any.
    address = re.search(r'tcp4://([\d.]+):(\d+)', os.environ.get('PMIX_SERVER_URI2', ''))
    try:
        if address:
            socket.create_connection((address[1], int(address[2])), timeout=10).close()
    except ConnectionRefusedError:
        signal.raise_signal(signal.SIGKILL)
    except OSError:  # not known
        pass


def main():
    """Take the role."""
    end_with_mpirun()
    parser, args = parse()
    take_role(parser, args)
    if os.environ['DMLC_ROLE'] == 'worker':
        work(args.script, args.arguments)
        return
    with contextlib.suppress(SystemExit):  # with which MXNet ends after it has served
        importlib.import_module('mxnet')
    if args.rank == 0:  # Open MPI's exit status can be 0 though a host was lost
        print('All workers have finished.', flush=True)


if __name__ == '__main__':
    main()

"""Run a distributed training on this machine, by one call of mpirun.

    python -m svrg_optimization.launch -n 2 -s 1 -- python train.py --prefix run/digits

Rank 0 is the scheduler, the next ranks are servers, and all others are workers, which run the
script. Each line begins with the rank that printed it. If a process fails, all end. On several
hosts start svrg_optimization.launch.role by mpirun or Slurm.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path


def main():
    """Become mpirun."""
    parser = argparse.ArgumentParser(prog='python -m svrg_optimization.launch', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-n', '--workers', type=int, default=2)
    parser.add_argument('-s', '--servers', type=int, default=1)
    parser.add_argument('python', help='Python of the workers')
    parser.add_argument('script', help='what each worker runs')
    parser.add_argument('arguments', nargs=argparse.REMAINDER, help='arguments of the script')
    args = parser.parse_args()
    for name in ('workers', 'servers'):
        if getattr(args, name) < 1:
            parser.error('argument --%s: must be 1 or more, not %d' % (name, getattr(args, name)))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get('PATH', os.defpath)])
    if 'python' not in Path(args.python).name or shutil.which(args.python, path=path) is None:
        parser.error('argument python: must be a Python that is here, not %r' % args.python)
    if not Path(args.script).is_file():
        parser.error('argument script: must be a file, not %r' % args.script)
    mpirun = shutil.which('mpirun', path=path)
    if mpirun is None:
        parser.error("mpirun of Open MPI must be beside this Python or on the PATH: "
                     "pip install 'svrg-optimization[cluster]' installs it")
    as_root = ['--allow-run-as-root'] * (os.geteuid() == 0)
    # As JSON, since mpirun itself reads an argument ':' of the script.
    role = ['-m', 'svrg_optimization.launch.role', '--servers', str(args.servers), '--as-json',
            json.dumps([args.script, *args.arguments])]
    # As many slots as processes, even if there are fewer cores, or if mpirun finds no core, as
    # without /sys. It uses no other host.
    os.execve(mpirun, [
        mpirun, *as_root, '--host', 'localhost:%d' % (1 + args.servers + args.workers),
        '--map-by', ':OVERSUBSCRIBE', '--bind-to', 'none', '--tag-output',
        '-np', str(1 + args.servers), sys.executable, *role,
        ':', '-np', str(args.workers), args.python, *role], {**os.environ, 'PATH': path})


if __name__ == '__main__':
    main()

"""Jobs that mpirun starts by their ranks."""

import os
import shutil
import sys
from pathlib import Path

ROLE = ['-m', 'svrg_optimization.launch.role']
# Open MPI's mpirun asks for it where root starts jobs, as in containers.
AS_ROOT = {name + '_ALLOW_RUN_AS_ROOT' + end: '1' for name in ('OMPI', 'PRTE')
           for end in ('', '_CONFIRM')}
BESIDE = str(Path(sys.executable).parent)
MPIRUN = shutil.which('mpirun', path=os.pathsep.join([BESIDE, os.environ.get('PATH', '')]))


def mpirun(processes, command, *options, servers=1, role=()):
    """Return the command that starts a script with its arguments in a job of some processes."""
    return [MPIRUN, '--tag-output', '--bind-to', 'none', '-x', 'PYTHONPATH', '-x',
            'OMP_NUM_THREADS', '-np', str(processes), *map(str, options), sys.executable, *ROLE,
            '-s', str(servers), *role, *map(str, command)]

"""Start of a distributed job by mpirun, and the role of a process that mpirun or Slurm starts."""

"""The role of a process that mpirun or Slurm starts for a distributed job."""

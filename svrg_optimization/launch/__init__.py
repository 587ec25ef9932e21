"""The role of a process that mpirun starts for a distributed job."""

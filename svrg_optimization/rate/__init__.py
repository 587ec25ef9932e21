"""The optimizer 'svrg_lbfgs': rate, metric, preconditioner, jumps and rollback."""

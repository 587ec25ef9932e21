"""The optimizer 'svrg_lbfgs': rate, metric, secant pairs, directions and rollback."""

"""The optimizer 'svrg_lbfgs': its rate, the metric, secant pairs, directions, the rollback."""

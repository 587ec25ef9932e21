"""The optimizer 'svrg_lbfgs', and whether training has converged: a map of the folder.

Front ends call `Run`, `take` and `SnapshotRule`. The door to their models is `Objective`. Behind
it all is mathematics on vectors: tests/rate/test_quadratic.py has an objective in NumPy.

| file | what it does |
|---|---|
| `run`, `training` | when snapshots are due; what a training counts, and has found |
| `algorithm` | a snapshot from beginning to end: learn, judge, jump while that pays, record |
| `objective` | the function that is minimised: its snapshot, and its gradients near that |
| `learning`, `rollback` | take a snapshot, compare it, go back if it is worse, set the rate |
| `convergence`, `confirmation` | the verdict: distance, check and word; they write nothing |
| `learned`, `saved` | the state: all that is learned; its form in a file |
| `smooth`, `composite`, `random`: `regime` | rate and way of each kind of objective |
| `metric`, `moments`, `secant_pairs` | the variables, what makes them, and the matrix H |
| `snapshot_rule`, `preconditioner`, `svrg_lbfgs` | rate and direction of a step; the optimizer |
| `result`, `words` | what a snapshot has found, and the sentence of it, with advice |
"""

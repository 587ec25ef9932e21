"""The optimizer 'newton_cg', and whether training has converged: a map of the folder.

Front ends call `Run` and `take`. The door to their models is `Objective`. Behind it all is
mathematics on vectors: tests/rate/test_quadratic.py has an objective in NumPy.

| file | what it does |
|---|---|
| `run`, `training` | when snapshots are due; what a training counts, and has found |
| `algorithm` | a snapshot from beginning to end: learn, judge and, in 'newton_cg', move |
| `objective` | the function that is minimised: its snapshot, and its gradients near that |
| `learning`, `comparison` | take a snapshot, compare it, and go back if a move has made it worse |
| `convergence`, `confirmation` | the verdict: distance, check and word; they write nothing |
| `learned`, `saved` | the state: all that is learned; its form in a file |
| `regime`, `composite` | the way of a smooth objective, and with proximal operators |
| `metric`, `moments`, `secant_pairs` | the variables, what makes them, and the matrix H |
| `newton_cg` | the optimizer |
| `result`, `words` | what a snapshot has found, and the sentence of it, with advice |
"""

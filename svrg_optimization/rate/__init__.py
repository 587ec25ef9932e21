"""The optimizer 'newton_cg', and whether training has converged: a map of the folder.

Front ends call `Run` and `take`. The door to their models is `Objective`. Behind it all is
mathematics on vectors.

| file | what it does |
|---|---|
| `run`, `training` | when snapshots are due; what a training counts, and has found |
| `algorithm` | what happens at a snapshot, with 'newton_cg' and beside other optimizers |
| `newton_cg` | the iterations of Newton's method: solve, trial, judge |
| `objective` | the function that is minimised: its snapshot, and its gradients near that |
| `path`, `nearby` | a path and its trials; products with the Hessian near a snapshot |
| `learning`, `comparison` | take a snapshot, compare it, and go back if a move has made it worse |
| `convergence`, `confirmation` | the verdict: distance, check and word; they write nothing |
| `learned`, `saved` | the state: all that is learned; its form in a file |
| `composite` | the path with proximal operators |
| `metric`, `moments`, `basis` | the variables, and what makes them: the inputs, and eigenvectors |
| `unseen` | what the loss does not see, as what outputs of a softmax have in common |
| `secant_pairs` | the matrix H |
| `optimizer` | 'newton_cg' as an optimizer of MXNet: checks its arguments, and makes no steps |
| `result`, `words` | what a snapshot has found, and the sentence of it, with advice |
"""

"""The numbers of rate/, each with what it follows from; `metric.py` has its own."""

# An estimate may be off by this factor: a curvature, the rounding of a sum, what a check has found.
ROUGHLY = 10
# What rounding may move the outputs by at a floor, beside their spread; a curvature that hardly
# counts beside the largest.
SLIGHT = 0.001
# TRON's: what is left of the gradient at the end of a path; which part of the model's fall a trial
# must have, and to widen the radius; by what that is multiplied.
RESIDUAL = 0.1
LEAST, GOOD = 1e-4, 0.75
SHRINK, GROW = 0.25, 4.
# Trials on a path at most.
TRIALS = 12
# By how much the curvature of a loss may be less than 1: a quarter is that of the logistic one.
CURVATURES = 4
# Passes of a check at most.
CHECKS = 6
# By how much few products with a random vector may miss the smallest curvature.
SHARP = 3
# Part of a random vector that a direction has with a probability of 0.96, beside the usual one.
CHANCE = 0.05
# Pairs that are kept, and products of a path: fewer forget what checks have taught. Both have this
# memory at most.
PAIRS, BYTES = 60, 1 << 27
# Pairs that tell of the curvature of now: older ones are of other weights.
LATEST = 10
# Of FISTA: iterations at most; the last step beside the first, so that 1e-5 of the model is left;
# iterations that find its rate.
ITERATIONS, EXACT, POWER = 1000, 1e-4, 30

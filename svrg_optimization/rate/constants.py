"""The numbers that rate/ has chosen, each with what it follows from; `metric.py` has its own."""

# An estimate may be off by this factor: a curvature, the rounding of a sum, what a check has found.
ROUGHLY = 10
# What hardly counts: what rounding may move the outputs by at a floor, beside their size; a
# curvature beside that of gamma.
SLIGHT = 0.001
# Passes of a check at most. A check of raw columns needs three to six.
PRODUCTS = 6
# By how much few products with a random vector may miss the smallest curvature.
SHARP = 3
# Part of a random vector that a direction has with a probability of 0.96, beside the usual one.
CHANCE = 0.05
# Pairs that are kept: fewer forget what checks have taught. They have this memory at most.
PAIRS, BYTES = 60, 1 << 27
# Pairs that tell of the curvature of now: older ones are of other weights.
LATEST = 10
# How often a move is halved at most.
HALVINGS = 20
# Of FISTA: iterations at most; the last step beside the first, so that 1e-5 of the model is left;
# iterations that find its rate.
ITERATIONS, EXACT, POWER = 1000, 1e-4, 30

"""Why a training has ended, in a sentence, with advice where it has not converged."""

# Those that converged come first.
REASONS = {
    'converged': 'training converged%(to)s',
    'at the floor': "training converged to %(dtype)s's precision",
    'stopped early': 'training was stopped early',
    'interrupted': 'training was interrupted',
    'epochs used up': 'training did not converge%(to)s: %(advice)s',
    'no step': 'training did not converge%(to)s: no step lowers the objective, '
               '%(advice)s',
    'not finite': 'training did not converge%(to)s: the gradient is not finite, %(advice)s'}


def sentence(found, objective, training):
    """Return the sentence of the reason of a Result.

    Parameters
    ----------
    found : Result
        What the latest snapshot has found.
    objective : Objective
        What was minimised.
    training : Training
        What is known of the training.
    """
    tol = objective.tol
    if found.reason == 'epochs used up' and tol is None:
        return 'all epochs are trained'  # nobody has asked for convergence
    return REASONS[found.reason] % {
        'to': '' if tol is None else ' to tol=%g' % tol, 'dtype': objective.dtype,
        'advice': next(words for applies, words in _advice(
            found, objective, training) if applies)}


def _advice(found, objective, training):
    """List what may keep a training from convergence, the likeliest first, and if it applies."""
    noise, check = ', '.join(objective.noise_sources), training.verdict.check
    learned = training.learned
    part = check and check.flat or learned.flat_part
    flat = ('the loss hardly changes along %s, as where classes are separable or a column has one '
            'value' % part)
    is_free = part and not objective.mean_gradient.proximal and not (
        objective.mean_gradient.decays[part]) and learned.falls_along(part)
    columns = learned.columns_that_rounding_hides()
    return (
        (found.reason == 'not finite',
         'a smaller learning rate is needed' if training.epochs and not objective.moves
         else 'look at the data and the initial weights'),
        (learned.rows_differ, 'passes had other rows, or padding, so that each has another '
                              'objective: choose a batch_size that divides the rows, or '
                              'round_batch=False with an iterator over a file'),
        (check and check.is_other_function,
         'passes find other gradients at the same weights: rows that are drawn, left out or '
         'changed by chance make each pass another objective'),
        (noise, 'with %s each batch has another objective' % noise),
        (not objective.moves and training.has_risen(found),
         'it went up, a smaller learning rate is needed'),
        (found.norm == 0, 'the gradient is 0, as at the optimum of a hinge loss or where it is '
                          'rounded to 0'),
        (is_free, flat + ': without weight decay there may be no optimum'),
        (training.verdict.is_hidden or found.reason == 'no step' and columns,
         'rounding of %s hides how far the optimum is%s' % (objective.dtype, columns)),
        (part, flat),
        (found.distance is None, 'distances are known for linear models only'),
        (found.reason == 'no step' and objective.moves,
         'and no bound of the distance: a larger tol%s may have one' % (
             ', or float64,' if objective.dtype == 'float32' else '')),
        (True, '%smore epochs may be needed' % (
            '' if objective.moves else 'another learning rate or ')))

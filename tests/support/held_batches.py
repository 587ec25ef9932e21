"""Trainings on batches whose rows are told by their values."""

SETTINGS = {'learning_rate': 0.1, 'momentum': 0.5, 'wd': 0.01}


def rows_of(problem, batch):
    """Tell which rows of the problem a batch has, or a list of them, by their values."""
    pieces = batch if isinstance(batch, list) else [batch]
    return problem.rows_of([piece.data[0] for piece in pieces])


def assert_svrg(problem, module, num_epoch, update_freq=1, svrg=None, sgd=SETTINGS, **kwargs):
    """Train with fit and in float64 on the rows that fit trains on, and compare the weights.

    Returns the twin, and the rows of each step by epoch.
    """
    steps = {epoch: [] for epoch in range(kwargs.get('begin_epoch', 0), num_epoch)}
    problem.fit(module, num_epoch, optimizer_params=sgd, **kwargs,
                batch_end_callback=lambda param: steps[param.epoch].append(
                    rows_of(problem, param.locals['data_batch'])))
    svrg = svrg or problem.svrg(**sgd)
    for epoch, batches in steps.items():
        if epoch % update_freq == 0:
            svrg.take_snapshot()
        for rows in batches:
            svrg.step(rows)
    problem.assert_weights(module, svrg.weights)
    return svrg, steps

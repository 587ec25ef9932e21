"""How many functions of the package a step and a snapshot pass: so much is there to read."""

import os
import re
import sys
from pathlib import Path

import svrg_optimization
from problems import Problem

ROOT = os.path.dirname(svrg_optimization.__file__)


def functions_of(call):
    """Return the functions that a call enters, without the repair of MXNet: file and name."""
    entered = set()

    def profile(frame, event, _):
        code = frame.f_code
        file = os.path.relpath(code.co_filename, ROOT)
        if event == 'call' and not file.startswith(('..', 'mxnet_repair')) and (
                not code.co_name.endswith(('comp>', 'expr>'))):
            entered.add((file, code.co_firstlineno))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def test_a_step_and_a_snapshot_pass_few_functions():
    problem = Problem('perceptron')
    module, train_data = problem.bound(), problem.iterator()
    module.init_optimizer()

    def step():
        module.forward_backward(batch)
        module.update()

    module.update_full_grads(train_data)
    train_data.reset()
    batch = next(train_data)
    step()
    assert 60 < len(functions_of(lambda: module.update_full_grads(train_data))) <= 111
    of_step = functions_of(step)
    assert 10 < len(of_step) <= 15
    page = Path(ROOT, '..', 'docs', 'design.md').read_text(encoding='utf-8')
    section = page[page.index('## A step in six files'):page.index('## Folders')]
    files = re.findall(r'^\d\. `(\S+)`:', section, re.MULTILINE)
    assert sorted(files) == sorted({file for file, _ in of_step}) and len(files) <= 6

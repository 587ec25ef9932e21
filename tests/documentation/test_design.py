"""The page on the design says which folder imports which, and how few functions a step passes."""

import ast
import os
import re
import sys
from pathlib import Path

from problems import Problem

PACKAGE = Path(__file__).resolve().parents[2] / 'svrg_optimization'
PAGE = PACKAGE.parent / 'docs' / 'design.md'


def imported_by(file):
    """Return what a file imports from the package: folders and files of the root, by name."""
    above = file.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
        if isinstance(node, ast.ImportFrom) and node.level:
            path = [*above[:len(above) + 1 - node.level], *(node.module or '').split('.')]
            found.update([path[0]] if path[0] else [alias.name for alias in node.names])
    return found


def test_a_folder_imports_only_from_those_above_it_and_files_of_the_root_that_do_so():
    folders = re.findall(r'^\| `(\w+)/` \|', PAGE.read_text(encoding='utf-8'), re.MULTILINE)
    assert sorted(folders) == sorted(path.parent.name for path in PACKAGE.glob('*/__init__.py'))
    files = {file.stem: imported_by(file) & set(folders) for file in PACKAGE.glob('*.py')}
    assert not files['alpha'] | files['proximal']
    for place, folder in enumerate(folders):
        for file in (PACKAGE / folder).glob('*.py'):
            others = imported_by(file) - {folder}
            for name in others & set(files):
                others |= files[name]
            assert others - set(files) <= set(folders[:place]), file


def test_a_step_passes_few_functions():
    problem, entered = Problem('perceptron'), set()
    module, train_data = problem.bound(sgd={}), problem.iterator()
    module.update_full_grads(train_data)
    train_data.reset()
    batch = next(train_data)

    def profile(frame, event, _):
        code = frame.f_code
        file = os.path.relpath(code.co_filename, PACKAGE)
        if event == 'call' and not file.startswith(('..', 'mxnet_repair')) and (
                not code.co_name.endswith(('comp>', 'expr>'))):
            entered.add((file, code.co_firstlineno))

    for _ in range(2):  # first calls also prepare
        entered.clear()
        sys.setprofile(profile)
        try:
            module.forward_backward(batch)
            module.update()
        finally:
            sys.setprofile(None)
    assert 10 < len(entered) <= 15
    page = PAGE.read_text(encoding='utf-8')
    section = page[page.index('## A step in six files'):page.index('## Folders')]
    assert sorted(re.findall(r'^\d\. `(\S+)`:', section, re.MULTILINE)) == sorted(
        {file for file, _ in entered})

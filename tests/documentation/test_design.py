"""The page on the design says which folder imports which."""

import ast
import re
from pathlib import Path

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


def test_no_files_import_each_other_in_a_circle():
    def files_of(file):
        """Return the files that a file imports, also where it does so later."""
        found, package = set(), PACKAGE.parent
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.ImportFrom) and (
                    node.level or (node.module or '').startswith(PACKAGE.name)):
                base = (file.parents[node.level - 1] if node.level else package).joinpath(
                    *(node.module or '').split('.'))
                found.update(path for path in (
                    base.with_suffix('.py'), *(base / (each.name + '.py') for each in node.names))
                    if path.exists())
        return found - {file}

    left = {file: files_of(file) for file in PACKAGE.glob('**/*.py') if file.stem != '__init__'}
    while left:
        last = [file for file, imported in left.items() if not imported & set(left)]
        assert last, sorted(map(str, left))
        for file in last:
            del left[file]

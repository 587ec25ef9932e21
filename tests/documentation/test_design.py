"""The page on the design says which folder imports which, and which files a step passes."""

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


def test_the_files_of_a_step_are_there():
    page = PAGE.read_text(encoding='utf-8')
    section = page[page.index('## A step in six files'):page.index('## Folders')]
    files = re.findall(r'^\d\. `(\S+)`:', section, re.MULTILINE)
    assert len(files) == 6 and all((PACKAGE / file).is_file() for file in files)

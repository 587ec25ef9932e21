"""The Python of the documentation runs as it stands, and its links lead somewhere."""

import importlib.util
import re
import runpy
import subprocess

import numpy as np
import pytest

from pages import DOCS, ROOT, blocks_of, text_of
from svrg_optimization import (
    LinearDecay,
    SVRGBucketingModule,
    SVRGModule,
    SVRGTrainer,
    proximal,
)

PAGES = [ROOT / 'README.md', *sorted(DOCS.glob('*.md'))]
OTHERS = [ROOT / name for name in ('CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md',
                                  'examples/README.md')]
FENCE = re.compile(r'^```.*?^```', re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r'^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?', re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r'-?\d+\.?\d*(?:e[+-]\d+)?')


def shown_blocks_of(page):
    """Return the page's blocks of Python, and what the page shows as their output.

    Each has as many lines before it as on the page.
    """
    text = text_of(page)
    return [(text.count('\n', 0, match.start(1)) * '\n' + match[1], match[2] or '')
            for match in BLOCK.finditer(text)]


def assert_same(printed, shown):
    """Check that two texts are the same, but for one unit in the last digit of a number."""
    assert NUMBER.sub('#', printed).split() == NUMBER.sub('#', shown).split(), printed
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown)):
        digits, _, power = theirs.partition('e')
        decimals = len(digits.partition('.')[2]) or 2 * digits.endswith('.')  # 1. is of round(2)
        unit = 10.0 ** (int(power or 0) - decimals)
        whole = power or '.' in digits
        assert abs(float(ours) - float(theirs)) <= 1.01 * unit * bool(whole), printed


def anchors_of(page):
    """Return the anchors that the headings of a page have."""
    headings = re.findall(r'^#+ (.+)$', FENCE.sub('', text_of(page)), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def named(pages):
    return [pytest.param(page, id=page.name) for page in pages]


@pytest.mark.parametrize('page', named(page for page in PAGES if shown_blocks_of(page)))
@pytest.mark.filterwarnings('error:Parameters already initialized',
                            'ignore:Optimizer created manually outside Module',
                            'ignore:WARNING. New optimizer',
                            'ignore:training did not converge')  # checkpoints.md stops early
def test_python_blocks_print_what_the_page_shows(page, tmp_path, monkeypatch, capsys):
    """They run one after the other, as a reader copies them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace, lacks = {}, set()
    for block, shown in shown_blocks_of(page):
        needed = re.findall('^import (onnxruntime|pandas|torch)', block, re.MULTILINE)
        if not all(map(importlib.util.find_spec, needed)):
            lacks.update(needed)
            continue
        exec(compile(block, str(page), 'exec'), namespace)
        printed = capsys.readouterr().out
        if printed or 'print(' in block:
            assert_same(printed, shown)
        assert printed or shown or not re.search(r'\.fit\(|full_grads\(', block), 'nothing to see'
    assert printed or shown, 'nothing to see at the end'
    if lacks:
        pytest.skip('needs ' + ' and '.join(sorted(lacks)))


@pytest.mark.parametrize('page', [
    pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in [*PAGES, *OTHERS]])
def test_links_lead_to_files_and_anchors_that_exist(page):
    targets = re.findall(r'\]\(([^()\s]+)\)', FENCE.sub('', text_of(page)))
    for target in targets:
        if re.match('https?://', target):
            continue
        path, _, anchor = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        assert file.is_file() and ROOT in file.parents, target
        assert not anchor or anchor in anchors_of(file), target


@pytest.mark.parametrize('constant', [0.0, 0.1, 1e6 + 0.1])
def test_the_first_script_scales_constant_columns_to_zero(constant):
    lines = re.search(r'^mean, deviation = .*?(?=^print)', text_of(DOCS / 'getting-started.md'),
                      re.MULTILINE | re.DOTALL)[0]
    varied = np.random.RandomState(0).normal(1000, 3, size=1000)
    rows = np.stack([np.full(1000, constant), varied], axis=1).astype('float32')
    namespace = {'rows': rows, 'new_rows': rows}
    exec(lines, namespace)
    np.testing.assert_allclose(namespace['rows'], np.stack(
        [np.zeros(1000), (varied - varied.mean()) / varied.std()], axis=1), atol=1e-4)


@pytest.mark.parametrize('trains', [SVRGModule, SVRGBucketingModule, SVRGTrainer])
def test_reference_has_all_methods_that_are_not_those_of_mxnet(trains):
    section = re.search(r'^\.\. autoclass:: [\w.]*%s\n(.*?)^```' % trains.__name__,
                        text_of(DOCS / 'api.md'), re.MULTILINE | re.DOTALL)[1]
    own = {name for base in trains.__mro__ if base.__module__.startswith('svrg_optimization')
           for name in vars(base) if not name.startswith('_')}
    assert set(re.findall(r'^   \.\. auto\w+:: (\w+)', section, re.MULTILINE)) == own


@pytest.mark.parametrize('shown', [
    LinearDecay, *(getattr(proximal, name) for name in proximal.__all__)])
def test_help_lists_only_what_users_call(shown):
    theirs = {name for base in shown.__mro__ if base.__module__.startswith('mxnet')
              for name in vars(base)}
    assert {name for name in dir(shown) if name[0] != '_'} - theirs <= {'prox', 'value'}


@pytest.mark.process
def test_a_command_mends_the_names_that_numpy_removed(tmp_path):
    command, = blocks_of(DOCS / 'moving.md', 'sh')
    script = tmp_path / 'train.py'
    script.write_text('a = np.zeros(3, np.int), np.ones(2, dtype=np.float)\n'
                      'b = np.int64(1) + np.float32(mynp.int) if np.bool_(0) else np.object\n')
    subprocess.run(['sh', '-c', command], cwd=tmp_path, check=True)
    assert script.read_text() == (
        'a = np.zeros(3, int), np.ones(2, dtype=float)\n'
        'b = np.int64(1) + np.float32(mynp.int) if np.bool_(0) else object\n')


def test_the_quick_start_comes_to_the_optimum_of_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for script in blocks_of(ROOT / 'README.md'):
        exec(compile(script, 'README.md', 'exec'), namespace)
    features, model, (weights, _) = (namespace['features'][:1600], namespace['model'],
                                     namespace['module'].get_params())
    of_classes = (features @ weights['fc_weight'].asnumpy().astype(float).T
                  + weights['fc_bias'].asnumpy())
    odds = np.diff(of_classes)[:, 0]
    np.testing.assert_allclose(odds, model.decision_function(features), atol=0.01)


def test_the_readme_is_short():
    assert len(text_of(ROOT / 'README.md').split()) <= 700


def test_pages_have_the_tables_that_the_benchmarks_wrote():
    copying = runpy.run_path(str(ROOT / 'examples' / 'benchmarks' / 'copy_tables.py'))
    written = {key: table for result in (DOCS / 'benchmarks').glob('*.md')
               for key, table in copying['tables_of'](text_of(result)).items()}
    for page in DOCS.glob('*.md'):
        assert copying['with_tables'](text_of(page), written) == text_of(page)

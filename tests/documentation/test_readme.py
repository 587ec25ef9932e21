"""The script of the README does what it says, and pages have the benchmarks' tables."""

import runpy

import numpy as np

from pages import DOCS, ROOT, blocks_of, text_of

README = ROOT / 'README.md'


def test_the_quick_start_comes_to_the_optimum_of_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for script in blocks_of(README):
        exec(compile(script, str(README), 'exec'), namespace)
    features, model, (weights, _) = (namespace['features'][:1600], namespace['model'],
                                     namespace['module'].get_params())
    of_classes = (features @ weights['fc_weight'].asnumpy().astype(float).T
                  + weights['fc_bias'].asnumpy())
    odds = np.diff(of_classes)[:, 0]
    np.testing.assert_allclose(odds, model.decision_function(features), atol=0.01)


def test_the_readme_is_short():
    assert len(text_of(README).split()) <= 700


def test_pages_have_the_tables_that_the_benchmarks_wrote():
    copying = runpy.run_path(str(ROOT / 'examples' / 'benchmarks' / 'copy_tables.py'))
    written = {key: table for result in (DOCS / 'benchmarks').glob('*.md')
               for key, table in copying['tables_of'](text_of(result)).items()}
    for page in DOCS.glob('*.md'):
        assert copying['with_tables'](text_of(page), written) == text_of(page)

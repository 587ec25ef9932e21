"""The script of the README does what it says, and pages have rows of the benchmarks' tables."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[2] / 'README.md'


def test_the_quick_start_comes_to_the_optimum_of_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for script in re.findall(r'^```python\n(.*?)^```', README.read_text(encoding='utf-8'),
                             re.MULTILINE | re.DOTALL):
        exec(compile(script, str(README), 'exec'), namespace)
    features, model, (weights, _) = (namespace['features'][:1600], namespace['model'],
                                     namespace['module'].get_params())
    of_classes = (features @ weights['fc_weight'].asnumpy().astype(float).T
                  + weights['fc_bias'].asnumpy())
    odds = np.diff(of_classes)[:, 0]
    np.testing.assert_allclose(odds, model.decision_function(features), atol=0.01)


def test_pages_have_rows_of_the_tables_that_the_benchmarks_wrote():
    docs = README.parent / 'docs'
    page = ''.join((docs / name).read_text(encoding='utf-8')
                   for name in ('learning-rate.md', 'measurements.md'))
    results = sorted((docs / 'benchmarks').glob('*.md'))
    assert results
    for result in results:
        parts = result.read_text(encoding='utf-8').strip().split('\n\n')
        shown = {table: page.partition('\n\n' + caption)[0].rpartition('\n\n')[2].splitlines()
                 for table, caption in zip(parts[::2], parts[1::2]) if caption in page}
        assert shown
        for table, rows in shown.items():
            assert rows[:2] == table.splitlines()[:2] and len(rows) > 3
            assert set(rows) <= set(table.splitlines())
        assert (len(shown) == len(parts) // 2 and all(
            rows == table.splitlines() for table, rows in shown.items())
            or '`docs/benchmarks/%s` has more' % result.name in page)
        if result.with_suffix('.png').exists():
            assert 'benchmarks/%s.png' % result.stem in page

"""The script of the README does what it says, and pages have rows of the benchmarks' tables."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[2] / 'README.md'


def test_the_script_of_the_readme_converges():
    text = README.read_text(encoding='utf-8')
    script, = re.findall(r'^```python\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    namespace = {}
    exec(compile(script, str(README), 'exec'), namespace)
    features, labels = namespace['features'], namespace['labels'].astype(int)
    weight, bias = (namespace['module'].get_params()[0]['fc_' + name].asnumpy().astype(float)
                    for name in ('weight', 'bias'))
    powers = np.exp(features @ weight.T + bias)
    errors = powers / powers.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    gradient = errors.T @ features / len(features) + 1e-3 * weight
    assert max(np.abs(gradient).max(), np.abs(errors.mean(axis=0)).max()) <= 1.1e-5


def test_pages_have_rows_of_the_tables_that_the_benchmarks_wrote():
    docs = README.parent / 'docs'
    page = ''.join((docs / name).read_text(encoding='utf-8')
                   for name in ('distributed.md', 'learning-rate.md', 'measurements.md',
                                'sparse.md'))
    results = sorted((docs / 'benchmarks').glob('*.md'))
    assert results
    for result in results:
        parts = result.read_text(encoding='utf-8').strip().split('\n\n')
        for table, caption in zip(parts[::2], parts[1::2]):
            before, found, _ = page.partition('\n\n' + caption)
            shown = before.rpartition('\n\n')[2].splitlines()
            assert found and shown[:2] == table.splitlines()[:2] and len(shown) > 3
            assert set(shown) <= set(table.splitlines())
            assert (shown == table.splitlines()
                    or '`docs/benchmarks/%s` has more' % result.name in page)
        if result.with_suffix('.png').exists():
            assert 'benchmarks/%s.png' % result.stem in page

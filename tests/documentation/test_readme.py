"""The Python of the README runs, in its order, and does what it says."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[2] / 'README.md'


def test_python_blocks():
    text = README.read_text(encoding='utf-8')
    blocks = re.findall(r'^```python\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), 'exec'), namespace)
        weight = namespace['module'].get_params()[0]['fc_weight'].asnumpy()
        np.testing.assert_allclose(weight, [[1, -2, 3, -4, 5]], rtol=1e-5)


def test_pages_have_the_tables_that_the_benchmarks_wrote():
    docs = README.parent / 'docs'
    page = (docs / 'measurements.md').read_text(encoding='utf-8')
    results = sorted((docs / 'benchmarks').glob('*.md'))
    assert results
    for result in results:
        assert result.read_text(encoding='utf-8').strip() in page
        if result.with_suffix('.png').exists():
            assert 'benchmarks/%s.png' % result.stem in page

"""The table of features that exclude each other."""

import ast
from pathlib import Path

import pytest

from svrg_optimization.core import exclusions

PAIRS = [(feature, allowed % feature if '%' in allowed else allowed, other)
         for features, allowed, others, _ in exclusions.EXCLUSIONS
         for feature in features for other in others]


@pytest.mark.parametrize('feature, allowed, other', PAIRS)
def test_a_pair_is_refused_and_each_alone_is_not(feature, allowed, other):
    for unused in (None, False, 0, {}, ''):
        exclusions.check_together({feature: 'this'}, {other: unused})
        exclusions.check_together({feature: unused, other: 'that'})
    with pytest.raises(ValueError, match='^%s with %s, as .*, and not this$' % (allowed, other)):
        exclusions.check_together({feature: 'this'}, {other: True})


def test_each_feature_is_one_that_is_checked():
    package, table = Path(exclusions.__file__).parents[1], Path(exclusions.__file__)
    named = {node.value for file in package.glob('**/*.py') if file != table
             for node in ast.walk(ast.parse(file.read_text(encoding='utf-8')))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    features = {each for feature, _, other in PAIRS for each in (feature, other)}
    assert features - named == {exclusions.SERVERS}

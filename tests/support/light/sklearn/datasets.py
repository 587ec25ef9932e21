"""Files that scikit-learn reads, read in a few lines."""

import sys
from pathlib import Path

import numpy as np

DIGITS = Path('sklearn', 'datasets', 'data', 'digits.csv.gz')


class _Rows(np.ndarray):
    def toarray(self):
        return np.asarray(self)


def load_digits(return_X_y):
    """Return the features and the labels of the digits."""
    assert return_X_y
    [path] = {folder / DIGITS for folder in map(Path, sys.path) if (folder / DIGITS).exists()}
    table = np.loadtxt(str(path), delimiter=',')
    return table[:, :-1], table[:, -1].astype(int)


def load_svmlight_file(path):
    """Return the features, which must be given in all rows, and the labels."""
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    features = np.array([[item.partition(':')[2] for item in line[1:]] for line in lines], float)
    return features.view(_Rows), np.array([line[0] for line in lines], float)

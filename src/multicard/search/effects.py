"""Models that predict how fast a combination of values is, and whether its run completes, from those that ran.

Each value of a parameter has an effect, and in the linear model each pair of values of two parameters, too: the score
of a combination is

    y = b + Σ_p α_p(v_p) + 0.4 Σ_p<q β_pq(v_p, v_q) + noise

with the value v_p of each parameter p, the effects α of values and β of pairs, and what is common to all, b. Effects
are normal around 0 with one variance, which is fitted, so those of pairs are expected to be 0.4 times as large.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multicard.search.space import Levels

# Expected size of the effects of pairs, relative to those of single values.
PAIR_EFFECT = 0.4


class ExpectedScores(NamedTuple):
    """The mean and the standard deviation of the score of each of some combinations."""

    mean: np.ndarray
    deviation: np.ndarray


def expected_scores(
    sizes: Sequence[int], scores: Mapping[Levels, float], combinations: Sequence[Levels]
) -> ExpectedScores:
    """Return the scores to expect of combinations, by Bayesian ridge regression.

    `sizes`: how many values each parameter has. `scores`: those of the combinations that ran.
    """
    # It is slow to import.
    from sklearn.linear_model import BayesianRidge

    model = BayesianRidge().fit(_with_pairs(_single_values(sizes, list(scores))), list(scores.values()))
    mean, deviation = model.predict(_with_pairs(_single_values(sizes, combinations)), return_std=True)
    return ExpectedScores(mean, deviation)


def completion_probabilities(
    sizes: Sequence[int], completed: Mapping[Levels, bool], combinations: Sequence[Levels]
) -> np.ndarray:
    """Return the probabilities that runs of combinations complete, by logistic regression on single values.

    `sizes`: how many values each parameter has. `completed`: whether the combinations that ran did. If all did, all are
    expected to:

    >>> completion_probabilities([2], {(0,): True}, [(0,), (1,)]).tolist()
    [1.0, 1.0]
    """
    # It is slow to import.
    from sklearn.linear_model import LogisticRegression

    if all(completed.values()):
        return np.ones(len(combinations))
    design = np.hstack(_single_values(sizes, list(completed)))
    model = LogisticRegression().fit(design, list(completed.values()))
    return model.predict_proba(np.hstack(_single_values(sizes, combinations)))[:, 1]


def _single_values(sizes: Sequence[int], combinations: Sequence[Levels]) -> list[np.ndarray]:
    """Return for each parameter a row per combination and a column per value: 1 if it has the value, less 1/size.

    >>> [columns.tolist() for columns in _single_values([2, 2], [(0, 1)])]
    [[[0.5, -0.5]], [[-0.5, 0.5]]]
    """
    levels = np.array(combinations)
    return [np.eye(size)[levels[:, parameter]] - 1 / size for parameter, size in enumerate(sizes)]


def _with_pairs(single: Sequence[np.ndarray]) -> np.ndarray:
    """Return the columns of single values, then one for each pair of values of two parameters.

    A pair has the product of its two columns times `PAIR_EFFECT`, so that the same effect counts as smaller:

    >>> _with_pairs(_single_values([2, 2], [(0, 1)])).tolist()
    [[0.5, -0.5, -0.5, 0.5, -0.1, 0.1, 0.1, -0.1]]
    """
    rows = len(single[0])
    pairs = []
    for first, second in itertools.combinations(single, 2):
        products = np.einsum("na,nb->nab", first, second)
        pairs.append(PAIR_EFFECT * products.reshape(rows, -1))
    return np.hstack([*single, *pairs])

"""Models that predict, from the combinations of values that ran, how good another one is and whether it completes.

In the linear model, each value of a parameter has an effect, and so has each pair of values of two parameters. The
score of a combination is

    y = b + Σ_p α_p(v_p) + 0.4 Σ_p<q β_pq(v_p, v_q) + noise

where v_p is the value of the parameter p, α_p(v_p) is its effect, β_pq(v_p, v_q) is the effect of a pair, and b is the
same for all combinations. All α and β are assumed to be normally distributed around 0 with the same variance, which is
fitted. Because of the factor 0.4, the effects of pairs are expected to be smaller than those of single values.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from multicard.search.space import Levels

# Expected size of the effect of a pair of values, divided by that of a single value.
PAIR_EFFECT = 0.4


class ExpectedScores(NamedTuple):
    """Predicted scores of some combinations: a mean and a standard deviation for each."""

    mean: np.ndarray
    deviation: np.ndarray


def expected_scores(
    sizes: Sequence[int], scores: Mapping[Levels, float], combinations: Sequence[Levels]
) -> ExpectedScores:
    """Return the predicted scores of combinations, by Bayesian ridge regression.

    `sizes`: the number of values of each parameter. `scores`: the score of each combination that ran.
    """
    # scikit-learn takes long to import.
    from sklearn.linear_model import BayesianRidge

    design_of_runs = _with_pairs(_single_values(sizes, list(scores)))
    model = BayesianRidge().fit(design_of_runs, list(scores.values()))
    design = _with_pairs(_single_values(sizes, combinations))
    mean, deviation = model.predict(design, return_std=True)
    return ExpectedScores(mean, deviation)


def completion_probabilities(
    sizes: Sequence[int], completed: Mapping[Levels, bool], combinations: Sequence[Levels]
) -> np.ndarray:
    """Return the probability that a run completes, for each combination, by logistic regression on single values.

    `sizes`: the number of values of each parameter. `completed`: for each combination that ran, whether all its runs
    completed; at least one must be True. If all are True, all probabilities are 1:

    >>> completion_probabilities([2], {(0,): True}, [(0,), (1,)]).tolist()
    [1.0, 1.0]
    """
    # scikit-learn takes long to import.
    from sklearn.linear_model import LogisticRegression

    if all(completed.values()):
        return np.ones(len(combinations))
    design_of_runs = np.hstack(_single_values(sizes, list(completed)))
    model = LogisticRegression().fit(design_of_runs, list(completed.values()))
    design = np.hstack(_single_values(sizes, combinations))
    # The columns are the probabilities of False and of True.
    probabilities = model.predict_proba(design)
    return probabilities[:, 1]


def _single_values(sizes: Sequence[int], combinations: Sequence[Levels]) -> list[np.ndarray]:
    """Return for each parameter an array with a row per combination and a column per value of the parameter.

    An entry is 1 − 1/size if the combination has the value, else −1/size:

    >>> [columns.tolist() for columns in _single_values([2, 2], [(0, 1)])]
    [[[0.5, -0.5]], [[-0.5, 0.5]]]
    """
    levels = np.array(combinations)
    columns_by_parameter = []
    for parameter, size in enumerate(sizes):
        # The row of the identity matrix for a value has 1 in the column of the value, and 0 in all others.
        has_value = np.eye(size)[levels[:, parameter]]
        columns_by_parameter.append(has_value - 1 / size)
    return columns_by_parameter


def _with_pairs(single: Sequence[np.ndarray]) -> np.ndarray:
    """Return the columns of single values, then a column for each pair of values of two parameters.

    The column of a pair is the product of the columns of its values, times `PAIR_EFFECT`:

    >>> _with_pairs(_single_values([2, 2], [(0, 1)])).tolist()
    [[0.5, -0.5, -0.5, 0.5, -0.1, 0.1, 0.1, -0.1]]
    """
    rows = len(single[0])
    pairs = []
    for first, second in itertools.combinations(single, 2):
        products = np.einsum("na,nb->nab", first, second)
        pairs.append(PAIR_EFFECT * products.reshape(rows, -1))
    return np.hstack([*single, *pairs])

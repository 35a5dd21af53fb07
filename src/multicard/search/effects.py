"""Models that predict how fast a combination of values is, and whether its run completes, from those that ran.

Each value of a parameter has an effect, and in the linear model each pair of values of two parameters, too.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from multicard.search.space import Levels

# Expected size of the effects of pairs, relative to those of single values.
PAIR_EFFECT = 0.4


def expected_scores(
    sizes: Sequence[int], scores: Mapping[Levels, float], combinations: Sequence[Levels]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation of the scores of combinations, by Bayesian ridge regression.

    `sizes`: how many values each parameter has. `scores`: those of the combinations that ran.
    """
    from sklearn.linear_model import BayesianRidge  # slow to import

    model = BayesianRidge().fit(_design(sizes, list(scores), pairs=True), list(scores.values()))
    return model.predict(_design(sizes, combinations, pairs=True), return_std=True)


def completion_probabilities(
    sizes: Sequence[int], completed: Mapping[Levels, bool], combinations: Sequence[Levels]
) -> np.ndarray:
    """Return the probabilities that runs of combinations complete, by logistic regression.

    `sizes`: how many values each parameter has. `completed`: whether the combinations that ran did.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    if all(completed.values()):
        return np.ones(len(combinations))
    model = LogisticRegression().fit(_design(sizes, list(completed)), list(completed.values()))
    return model.predict_proba(_design(sizes, combinations))[:, 1]


def _design(sizes: Sequence[int], combinations: Sequence[Levels], pairs: bool = False) -> np.ndarray:
    """Return a row for each combination with a column for each value of a parameter: 1 if it has it, less 1/size.

    With `pairs` there is one for each pair of values, too, which is scaled so that its effect counts as smaller.

    >>> _design([2, 2], [(0, 1)], pairs=True).tolist()
    [[0.5, -0.5, -0.5, 0.5, -0.1, 0.1, 0.1, -0.1]]
    """
    levels = np.array(combinations)
    single = [np.eye(size)[levels[:, index]] - 1 / size for index, size in enumerate(sizes)]
    if not pairs:
        return np.hstack(single)
    products = [
        np.einsum("na,nb->nab", first, second).reshape(len(levels), -1)
        for first, second in itertools.combinations(single, 2)
    ]
    return np.hstack([*single, *(PAIR_EFFECT * product for product in products)])

"""Proposals of what to run next, by Optuna's tree-structured Parzen estimator (TPE).

TPE (Bergstra et al., NIPS 2011) keeps two densities over the combinations of values: one of the best combinations so
far, and one of all others. It draws combinations from the first, and proposes the one at which the first is largest
relative to the second.

The sampler knows nothing but the trials of its study, so each call makes a new study of all results. The same results
and the same seed then give the same proposals.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from multicard.search.space import Key, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

# Values of the constraint of a trial: above 0 if its configuration did not complete.
COMPLETED, NOT_COMPLETED = -1.0, 1.0
# Most combinations that are drawn for each proposal, since many of them may be of configurations that have run.
DRAWS = 10


def proposals(
    space: Space[Key], scores: Mapping[Key, float | None], candidates: Collection[Key], count: int, seed: int
) -> list[Key]:
    """Return up to `count` of the candidates, in the order in which the sampler proposes them.

    They are fewer if the sampler proposes only what is no candidate. `scores`: the score of each configuration that
    ran, larger is better; None if it did not complete. At least one must have completed.
    """
    # Only a search that has results needs Optuna, which belongs to an extra.
    import optuna

    distributions = {name: _distribution(values) for name, values in space.parameters.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # One trial at the start is enough: the search has its own first runs.
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials(_trials(space, scores, distributions))
    proposed: list[Key] = []
    for _ in range(DRAWS * count):
        # The trial stays without a result, which keeps the sampler away from what it has proposed.
        drawn = study.ask(distributions).params
        key = space.configurations.get(tuple(drawn[name] for name in space.parameters))
        if key is not None and key in candidates and key not in proposed:
            proposed.append(key)
        if len(proposed) == count:
            break
    return proposed


def _trials(
    space: Space[Key], scores: Mapping[Key, float | None], distributions: Mapping[str, "BaseDistribution"]
) -> list["FrozenTrial"]:
    """Return a trial for each combination of a configuration that ran.

    The sampler ignores trials that failed, so a configuration that did not complete is a trial that violates a
    constraint. Its value is the mean of the others and says nothing.
    """
    from optuna.trial import create_trial

    mean = float(np.mean([score for score in scores.values() if score is not None]))
    trials = []
    for levels, key in space.configurations.items():
        if key not in scores:
            continue
        score = scores[key]
        trial = create_trial(
            params=dict(zip(space.parameters, levels, strict=True)),
            distributions=dict(distributions),
            value=mean if score is None else score,
            constraints={"completes": NOT_COMPLETED if score is None else COMPLETED},
        )
        trials.append(trial)
    return trials


def _distribution(values: Sequence[Any]) -> "BaseDistribution":
    """Return the distribution of the index of a value in its list.

    It is one of integers if the values are numbers in order, since near ones are then alike; else it is categorical.
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    # `isinstance` would also accept a bool.
    are_numbers = all(type(value) in (int, float) for value in values)
    if are_numbers and list(values) in (sorted(values), sorted(values, reverse=True)):
        return IntDistribution(0, len(values) - 1)
    return CategoricalDistribution(range(len(values)))

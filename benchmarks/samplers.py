"""How near to the best `multicard tune` comes after a number of runs, and how near Optuna's samplers come.

    python benchmarks/samplers.py [--seeds 30] [--spaces SPACE ...] [--methods METHOD ...] [--out FILE]
    python benchmarks/samplers.py --read FILE ...

The spaces are those of `benchmarks/surfaces.py`. Every run costs the same, also one that runs out of memory, and its
measured throughput is the true one times a log-normal factor. A search has a budget of runs. Its answer is compared by
its *true* throughput: the gap to the best configuration, in percent.

*tune* is the search of `multicard tune`. It takes its new configurations from Optuna's TPE sampler, and makes repeats.
*TPE alone* and *GP alone* propose each run, and the answer is the configuration with the highest mean.

Alone, a sampler gets what Optuna documents. Lists of numbers are integers (the index in the list), all else is
categorical. A run that ran out of memory is a trial with a violated constraint, since all samplers ignore failed
trials. The value of such a trial is the mean of those that completed, so that the objective's model is not bent at the
limit.
"""

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from surfaces import SURFACES, Surface, make_surface

from multicard.search.core import Search
from multicard.search.space import Levels, Space

REPEATS = 3
BUDGETS = [8, 16, 32]
NOISES = [0.005, 0.02, 0.05]
# Runs before the first proposal of a sampler. Optuna's default, 10, is above the least budget.
FIRST_RUNS = 6
# Values of the constraint of a trial, by whether it fitted into memory.
SATISFIED, VIOLATED = -1.0, 1.0

# Makes a sampler from its seed and the number of random runs at its begin.
MakeSampler = Callable[[int, int], optuna.samplers.BaseSampler]


class Outcome(NamedTuple):
    """The answer of a search, and the number of runs that it took."""

    answer: Levels | None
    runs: int


# The outcome for each budget.
Outcomes = dict[int, Outcome]


class Machine:
    """Measures configurations of a surface with noise."""

    def __init__(self, surface: Surface, noise: float, seed: int) -> None:
        self._surface = surface
        self._noise = noise
        self._random = np.random.default_rng([seed, 7])

    def run(self, configuration: Levels) -> float | None:
        """Return a measured throughput; None if the configuration does not fit into memory."""
        true = self._surface.throughput.get(configuration)
        if true is None:
            return None
        return float(true * np.exp(self._random.normal(0, self._noise)))


# The ways to search --------------------------------------------------------------------------------------------------

Method = Callable[[Surface, float, Sequence[int], int], Outcomes]


def tune(surface: Surface, noise: float, budgets: Sequence[int], seed: int) -> Outcomes:
    """Search as `multicard tune` does, from the start for each budget, since the search depends on it."""
    outcomes = {}
    for budget in budgets:
        machine = Machine(surface, noise, seed)
        search = Search(surface.space, True, REPEATS, budget, seed)
        runs = 0
        while requests := search.ask():
            for configuration, repeat in requests:
                search.tell(configuration, repeat, machine.run(configuration), cost=1.0)
            runs += len(requests)
        outcomes[budget] = Outcome(search.best, runs)
    return outcomes


def random_search(surface: Surface, noise: float, budgets: Sequence[int], seed: int) -> Outcomes:
    """Run different configurations in random order."""
    configurations = list(surface.space.combinations)
    order = iter(np.random.default_rng([seed, 11]).permutation(len(configurations)))
    machine = Machine(surface, noise, seed)
    return _unguided(budgets, lambda: configurations[next(order)], machine, lambda _value, _mean: None)


def alone(make_sampler: MakeSampler) -> Method:
    """Return a method that runs what a sampler proposes."""

    def search(surface: Surface, noise: float, budgets: Sequence[int], seed: int) -> Outcomes:
        distributions = _distributions(surface.space)
        study = optuna.create_study(direction="maximize", sampler=make_sampler(seed, FIRST_RUNS))
        trials: list[optuna.Trial] = []

        def propose() -> Levels:
            trials.append(study.ask(distributions))
            return surface.space.configurations[_levels(surface.space, trials[-1].params)]

        def learn(score: float | None, mean_score: float) -> None:
            trials[-1].set_constraint("memory", VIOLATED if score is None else SATISFIED)
            study.tell(trials[-1], mean_score if score is None else score)

        return _unguided(budgets, propose, Machine(surface, noise, seed), learn)

    return search


def _unguided(
    budgets: Sequence[int],
    propose: Callable[[], Levels],
    machine: Machine,
    learn: Callable[[float | None, float], None],
) -> Outcomes:
    """Run what is proposed, and answer with the configuration of the highest mean after each number of runs in budgets.

    `learn`: called after each run with the logarithm of its throughput (None if it did not fit into memory), and with
    the mean of all logarithms so far.
    """
    scores: dict[Levels, list[float]] = defaultdict(list)
    outcomes = {}
    for runs in range(1, max(budgets) + 1):
        configuration = propose()
        value = machine.run(configuration)
        score = None if value is None else float(np.log(value))
        if score is not None:
            scores[configuration].append(score)
        all_scores = [score for repeats in scores.values() for score in repeats]
        learn(score, float(np.mean(all_scores)) if all_scores else 0.0)
        if runs in budgets:
            answer = max(scores, key=lambda key: float(np.mean(scores[key])), default=None)
            outcomes[runs] = Outcome(answer, runs)
    return outcomes


def _distributions(space: Space[Levels]) -> dict[str, BaseDistribution]:
    """Return for each parameter the distribution of the index of its value: an integer if the values are numbers."""
    distributions: dict[str, BaseDistribution] = {}
    for name, values in space.parameters.items():
        are_numbers = all(type(value) in (int, float) for value in values)
        indices = range(len(values))
        distributions[name] = IntDistribution(0, len(values) - 1) if are_numbers else CategoricalDistribution(indices)
    return distributions


def _levels(space: Space[Levels], params: Mapping[str, Any]) -> Levels:
    return tuple(params[name] for name in space.parameters)


def _tpe(seed: int, first_runs: int) -> optuna.samplers.BaseSampler:
    # Multivariate and with the constant liar, by its defaults.
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=first_runs)


def _gp(seed: int, first_runs: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=first_runs)


METHODS: dict[str, Method] = {
    "tune": tune,
    "random": random_search,
    "TPE alone": alone(_tpe),
    "GP alone": alone(_gp),
}


class Gap(NamedTuple):
    """How far the answer of a search is from the best, in percent of its throughput, and how many runs it took."""

    space: str
    noise: float
    budget: int
    method: str
    seed: int
    percent: float
    runs: int


def search_all(
    seed: int, spaces: Sequence[str], noises: Sequence[float], budgets: Sequence[int], methods: Sequence[str]
) -> list[Gap]:
    """Search each space with each noise by each method."""
    gaps = []
    for space, noise, method in itertools.product(spaces, noises, methods):
        surface = make_surface(space, seed)
        for budget, outcome in METHODS[method](surface, noise, budgets, seed).items():
            percent = 100 * surface.gap(outcome.answer)
            gaps.append(Gap(space, noise, budget, method, seed, percent, outcome.runs))
    return gaps


def print_table(gaps: Sequence[Gap]) -> None:
    """Print median and 90th percentile of the gaps over the seeds, and the mean, a row for each space and budget."""
    methods = [method for method in METHODS if any(gap.method == method for gap in gaps)]
    rows: dict[tuple[str, float, int], dict[str, list[float]]] = {}
    for gap in gaps:
        row = rows.setdefault((gap.space, gap.noise, gap.budget), {method: [] for method in methods})
        row[gap.method].append(gap.percent)
    print(f"| space | noise | runs | {' | '.join(methods)} |")
    print("|---" * (3 + len(methods)) + "|")
    for (space, noise, budget), row in sorted(rows.items()):
        cells = [_cell(row[method]) for method in methods]
        print(f"| {space} | {noise:.1%} | {budget} | {' | '.join(cells)} |")


def _cell(percents: Sequence[float]) -> str:
    if not percents:
        return ""
    return f"{np.median(percents):.1f} / {np.quantile(percents, 0.9):.1f} ({np.mean(percents):.1f})"


def main() -> None:
    """Search, or read what was searched, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=4000)
    parser.add_argument("--spaces", nargs="+", choices=list(SURFACES), default=list(SURFACES))
    parser.add_argument("--noises", nargs="+", type=float, default=NOISES)
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--out", type=Path, help="file to which a line of JSON is added for each answer")
    parser.add_argument("--read", nargs="+", type=Path, help="print the table of such files, and search nothing")
    arguments = parser.parse_args()
    if arguments.read:
        print_table([Gap(*json.loads(line)) for path in arguments.read for line in path.read_text().splitlines()])
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    gaps: list[Gap] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        of_seed = search_all(seed, arguments.spaces, arguments.noises, arguments.budgets, arguments.methods)
        gaps += of_seed
        if arguments.out:
            with arguments.out.open("a") as file:
                file.writelines(json.dumps(gap) + "\n" for gap in of_seed)
    print_table(gaps)


if __name__ == "__main__":
    main()

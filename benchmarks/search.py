"""How well and at what cost `multicard tune` searches, on spaces whose truth is known: against other methods.

    OMP_NUM_THREADS=1 python benchmarks/search.py [--seeds 100] [--first-seed 0] [--spaces loader effects]
                                                  [--others METHOD ...] [--out FILE]

Two spaces of 240 configurations, others for each seed, with three repeats each in the full matrix. `loader`: a
training step as on a GPU, bound by the loader or by compute, with 240 combinations of batch size, loader workers,
precision, memory layout and compilation that interact. `effects`: five parameters with random effects and random
interactions of all pairs. In both a run that does not fit into memory fails after its start, repeats vary by 2 %,
and one in twenty is disturbed by 5 to 15 %. A run costs 20 s and 100 steps.

The search has 15 % of the cost of the full matrix, and may stop before. Random search (without putting back) and
Optuna's TPE and Gaussian-process samplers with their defaults, where runs that fail are failed trials, spend once what
it spent, and once all of the 15 %; they take what gave the highest value. `--others` alone leaves them out.
"""

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from multicard.search.core import Search
from multicard.search.space import Space

REPEATS, SHARE, NEAR = 3, 0.15, 0.97
SPACES: dict[str, dict[str, list[Any]]] = {
    "loader": {
        "batch_size": [16, 32, 64, 128, 256],
        "num_workers": [0, 1, 2, 4, 8, 16],
        "precision": ["fp32", "bf16"],
        "layout": ["nchw", "nhwc"],
        "compile": [False, True],
    },
    "effects": {
        "first": ["a", "b", "c", "d"],
        "second": [1, 2, 4, 8, 16],
        "third": ["x", "y", "z"],
        "fourth": [False, True],
        "fifth": [False, True],
    },
}


class World:
    """A space with its truth: throughput and step time of each configuration, and whether it fits into memory."""

    def __init__(self, name: str, seed: int) -> None:
        rng = np.random.default_rng([seed, list(SPACES).index(name)])
        self.parameters = SPACES[name]
        self.levels = list(itertools.product(*(range(len(values)) for values in self.parameters.values())))
        self.truth, self.step_s, self.too_large = {"loader": _loader, "effects": _effects}[name](self.levels, rng)
        self.noise = np.random.default_rng([seed, 7])
        self.best = self.truth[~self.too_large].max()
        self.matrix_cost = REPEATS * sum(map(self.cost, range(len(self.levels))))

    def cost(self, number: int) -> float:
        """Seconds of a run."""
        return 20 + (0 if self.too_large[number] else 100 * self.step_s[number])

    def run(self, number: int) -> float | None:
        """Throughput that a run measures; None where it does not fit into memory."""
        if self.too_large[number]:
            return None
        disturbed = 1 + (self.noise.random() < 0.05) * self.noise.uniform(0.05, 0.15)
        return float(self.truth[number] * np.exp(self.noise.normal(0, 0.02)) / disturbed)


def _loader(levels: list[tuple[int, ...]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A step is as long as the slower of compute and loader; without workers one follows the other."""
    sample_us, step_us = rng.uniform(100, 400), rng.uniform(500, 4000)
    load_us, cores, parallel = sample_us * rng.uniform(1, 12), rng.choice([4, 8, 16]), rng.uniform(0.75, 1)
    half, compiled, compiled_step = rng.uniform(0.5, 0.8), rng.uniform(0.75, 1.05), rng.uniform(0.3, 0.9)
    channels_last = {False: rng.uniform(0.95, 1.15), True: rng.uniform(0.6, 0.95)}  # by whether in half precision
    limit, half_memory, compiled_memory = 64 * rng.uniform(1.2, 8), rng.uniform(0.55, 0.7), rng.uniform(0.75, 1.1)
    step, batch, too_large = np.zeros(len(levels)), np.zeros(len(levels)), np.zeros(len(levels), bool)
    for number, own in enumerate(levels):
        values = [listed[level] for listed, level in zip(SPACES["loader"].values(), own, strict=True)]
        batch[number], workers, precision, layout, compiles = values
        is_half = precision == "bf16"
        factor = (half if is_half else 1) * (channels_last[is_half] if layout == "nhwc" else 1)
        compute = sample_us * factor * (compiled if compiles else 1) * batch[number]
        compute += step_us * (compiled_step if compiles else 1)
        if workers == 0:
            step[number] = compute + load_us * batch[number]
        else:
            speed = min(workers, cores) ** parallel * (1 - 0.02 * max(0, workers - cores))
            step[number] = (compute**6 + (load_us * batch[number] / speed) ** 6) ** (1 / 6)
        too_large[number] = (
            batch[number] * (half_memory if is_half else 1) * (compiled_memory if compiles else 1) > limit
        )
    return 1e6 * batch / step, step / 1e6, too_large


def _effects(levels: list[tuple[int, ...]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effects with a standard deviation of 20 %, interactions of 8 %; 5 to 30 % do not fit into memory."""
    own, sizes = np.array(levels), [len(values) for values in SPACES["effects"].values()]
    logs = sum(rng.normal(0, 0.2, size)[own[:, place]] for place, size in enumerate(sizes))
    for one, other in itertools.combinations(range(len(sizes)), 2):
        logs = logs + rng.normal(0, 0.08, (sizes[one], sizes[other]))[own[:, one], own[:, other]]
    memory = rng.uniform(0, 1, 4)[own[:, 0]] + rng.uniform(0.05, 0.25) * own[:, 1] + rng.uniform(0, 0.3) * own[:, 3]
    throughput = 1000 * np.exp(logs)
    return throughput, 64 / throughput, memory > np.quantile(memory, rng.uniform(0.7, 0.95))


def tune(world: World, seed: int, budget: float) -> tuple[int | None, float, int]:
    """The search of `multicard tune`: what it takes for the best, what that cost, and its runs."""
    space = Space(world.parameters, {levels: number for number, levels in enumerate(world.levels)})
    search, runs = Search(space, True, REPEATS, budget, seed), 0
    while asked := search.ask():
        for number, repeat in asked:
            search.tell(number, repeat, world.run(number), world.cost(number))
        runs += len(asked)
    return search.best, search.spent, runs


def random_search(world: World, seed: int, budget: float) -> tuple[int | None, float, int]:
    """Configurations in random order."""
    order = iter(np.random.default_rng([seed, 11]).permutation(len(world.levels)))
    return _spend(world, budget, lambda: int(next(order)), lambda _value: None)


def optuna_alone(
    sampler: type[optuna.samplers.BaseSampler], world: World, seed: int, budget: float
) -> tuple[int | None, float, int]:
    """A sampler of Optuna's with its defaults."""
    study = optuna.create_study(direction="maximize", sampler=sampler(seed=seed))
    numbers, trials = {levels: number for number, levels in enumerate(world.levels)}, []

    def propose() -> int:
        trials.append(study.ask())
        values = [trials[-1].suggest_categorical(name, range(len(listed))) for name, listed in world.parameters.items()]
        return numbers[tuple(values)]

    def learn(value: float | None) -> None:
        failed = optuna.trial.TrialState.FAIL
        study.tell(trials[-1], value) if value else study.tell(trials[-1], state=failed)

    return _spend(world, budget, propose, learn)


def _spend(
    world: World, budget: float, propose: Callable[[], int], learn: Callable[[float | None], None]
) -> tuple[int | None, float, int]:
    """Run what is proposed until the budget is spent, and take what gave the highest value."""
    found, spent, runs = {}, 0.0, 0
    while spent < budget:
        number = propose()
        value = world.run(number)
        learn(value)
        spent, runs = spent + world.cost(number), runs + 1
        if value is not None:
            found[number] = max(value, found.get(number, 0.0))
    return max(found, key=found.get, default=None), spent, runs


def searched(
    search: Callable[[World, int, float], tuple[int | None, float, int]], name: str, seed: int, budget: float
) -> tuple[float, float, int]:
    """What a method finds as a share of the best, its cost as a share of the full matrix's, and its runs."""
    world = World(name, seed)
    best, spent, runs = search(world, seed, budget)
    return 0.0 if best is None else float(world.truth[best] / world.best), spent / world.matrix_cost, runs


OTHERS = {
    "random search": random_search,
    "Optuna TPE": partial(optuna_alone, optuna.samplers.TPESampler),
    "Optuna GP": partial(optuna_alone, optuna.samplers.GPSampler),
}


def main() -> None:
    """Search each space with each method, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--spaces", nargs="+", choices=list(SPACES), default=list(SPACES))
    parser.add_argument("--others", nargs="*", choices=list(OTHERS), default=list(OTHERS))
    parser.add_argument("--out", type=Path, help="file to which a line of JSON is added for each seed")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| space | method | within 3 % of the best | below the best, mean | cost, mean (highest) | runs, mean |")
    print("|---|---|---|---|---|---|")
    for name in arguments.spaces:
        rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            full = SHARE * World(name, seed).matrix_cost
            rows["multicard tune"].append(searched(tune, name, seed, full))
            spent = rows["multicard tune"][-1][1] * full / SHARE
            for method in arguments.others:
                search = OTHERS[method]
                rows[f"{method}, as much"].append(searched(search, name, seed, spent))
                rows[f"{method}, 15 %"].append(searched(search, name, seed, full))
            if arguments.out:
                with arguments.out.open("a") as file:
                    print(json.dumps([name, seed, {method: own[-1] for method, own in rows.items()}]), file=file)
        for method, found in rows.items():
            reached, cost, runs = map(np.array, zip(*found, strict=True))
            print(
                f"| {name} | {method} | {(reached >= NEAR).sum()} of {len(found)} | {1 - reached.mean():.1%} "
                f"| {cost.mean():.1%} ({cost.max():.1%}) | {runs.mean():.0f} |"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()

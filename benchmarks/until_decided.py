"""Coverage and number of runs of repeats until decided, by simulation with known truth, as tables for README.md.

    python benchmarks/until_decided.py [--trials 2000]

Rates of a scenario's configurations are lognormal, in shuffled blocks. Under a drift the machine becomes slower by a
share per block, also within it. Repeats are added as `multicard run` does; beside that stand the same without the
correction of intervals, and fixed numbers of repeats.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from multicard.answers.repeats import is_decided
from multicard.results.configuration import Block
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool

LEAST, MOST, UNTIL = 3, 10, 0.05
SCATTERS, DRIFT = (0.005, 0.02, 0.1), 0.01
# True rates of the configurations of a scenario.
SCENARIOS = {"two, equal": (1.0, 1.0), "two, 3% apart": (1.0, 1.03), "four": (1.0, 1.0, 1.05, 1.9)}


@dataclass(frozen=True)
class Rule:
    """How repeats are added: from `least` to `most`, with intervals that allow for so many looks."""

    least: int
    most: int
    looks: int


RULES = {
    "until decided": Rule(LEAST, MOST, MOST - 1),
    "the same, uncorrected": Rule(LEAST, MOST, 1),
    "3 repeats": Rule(LEAST, LEAST, 1),
    "10 repeats": Rule(MOST, MOST, 1),
}


def rates(rng: np.random.Generator, truths: Sequence[float], scatter: float, drift: float) -> np.ndarray:
    """Rates of the configurations, a row per block; all blocks have an order of their own."""
    count = len(truths)
    positions = np.array([block * count + rng.permutation(count) for block in range(MOST)])
    noise = rng.normal(0, scatter, (MOST, count))
    return np.asarray(np.exp(np.log(truths) + noise - drift * positions / count))


def end(measured: np.ndarray, rule: Rule) -> tuple[int, dict[tuple[int, int], Interval]]:
    """The number of repeats that a rule ends with, and the ratio of every two configurations then."""
    count = measured.shape[1]
    for repeats in range(rule.least, rule.most + 1):
        samples = [
            {Block((), block, rule.looks): measured[block, place] for block in range(repeats)} for place in range(count)
        ]
        pool = Pool(samples)
        ratios = {(place, base): pool.ratio(place, base) for base, place in combinations(range(count), 2)}
        if all(is_decided(ratio, UNTIL) for ratio in ratios.values()):
            break
    return repeats, {places: ratio for places, ratio in ratios.items() if ratio is not None}


def holds(ratio: Interval, truth: float) -> bool:
    """Whether an interval holds the truth; every ratio here has one."""
    assert ratio.low is not None and ratio.high is not None
    return ratio.low <= truth <= ratio.high


def cell(
    rng: np.random.Generator, truths: Sequence[float], scatter: float, drift: float, rule: Rule, trials: int
) -> str:
    """The lowest coverage of all comparisons, the share that is decided, and the mean number of repeats."""
    held, decided, numbers = [], [], []
    for _ in range(trials):
        repeats, ratios = end(rates(rng, truths, scatter, drift), rule)
        held.append([holds(ratio, truths[place] / truths[base]) for (place, base), ratio in ratios.items()])
        decided.append(all(is_decided(ratio, UNTIL) for ratio in ratios.values()))
        numbers.append(repeats)
    return f"{np.mean(held, axis=0).min():.1%}, {np.mean(decided):.0%}, {np.mean(numbers):.1f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    print("| configurations | scatter | drift per block |", " | ".join(RULES), "|")
    print("|---" * (3 + len(RULES)) + "|")
    for name, truths in SCENARIOS.items():
        for scatter in SCATTERS:
            for drift in (0.0, DRIFT):
                rng = np.random.default_rng(0)
                cells = [cell(rng, truths, scatter, drift, rule, trials) for rule in RULES.values()]
                print(f"| {name} | {scatter:.1%} | {drift:.0%} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()

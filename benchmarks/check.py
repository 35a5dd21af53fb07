"""False alarms and power of `multicard compare --fail-above`, by simulation with known truth, as tables for README.md.

    python benchmarks/check.py [--families 1000]

Repeats are lognormal; a family is a check of 20 configurations against a tolerance of 3%.
"""

import argparse

import numpy as np
from scipy.stats import nct, t

from multicard.answers.comparison.changes import REGRESSION, judge
from multicard.answers.comparison.pairs import Pair

CONFIGURATIONS, TOLERANCE = 20, 0.03
SPREADS, REPEATS = (0.005, 0.01, 0.02), (3, 5, 8)
SESSIONS = (0.0, 0.01, 0.02)


def shown(
    rng: np.random.Generator,
    families: int,
    changes: list[float],
    spread: float,
    repeats: int,
    session: float | None = None,
) -> np.ndarray:
    """Which configurations checks call regressions, families × configurations, if so much slower.

    `session`: deviation of the speed of a session, which all configurations share; each repeat of a side is one. None
    where all of both sides ran in one.
    """
    sessions = ([0] * repeats,) * 2 if session is None else (range(repeats), range(repeats, 2 * repeats))

    def family() -> list[bool]:
        shared = rng.normal(0, session or 0.0, (2, 1, repeats))
        old, new = np.exp(rng.normal(0, spread, (2, len(changes), repeats)) + shared)
        pairs = [
            Pair(str(place), "iteration_time", before, after * (1 + change), sessions)
            for place, (before, after, change) in enumerate(zip(old, new, changes, strict=True))
        ]
        return [found.verdict == REGRESSION for found in judge(pairs, TOLERANCE)]

    return np.array([family() for _ in range(families)])


def power_alone(spread: float, repeats: int) -> float:
    """Power of the t test of one configuration that is slower by twice the tolerance: noncentral t."""
    freedom, effect = 2 * repeats - 2, np.log((1 + 2 * TOLERANCE) / (1 + TOLERANCE))
    return float(nct.sf(t.ppf(0.975, freedom), freedom, effect / spread * np.sqrt(repeats / 2)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=int, default=1000)
    families = parser.parse_args().families
    rng = np.random.default_rng(0)
    none, slower = [0.0] * CONFIGURATIONS, 2 * TOLERANCE
    print(
        "| spread | repeats | none slower | all 3% slower | 6% slower, alone | by noncentral t | 1 of 20 | each of 20 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for spread in SPREADS:
        for repeats in REPEATS:
            found = [
                shown(rng, families, changes, spread, repeats)
                for changes in (
                    none,
                    [TOLERANCE] * CONFIGURATIONS,
                    [slower],
                    [slower, *none[1:]],
                    [slower] * CONFIGURATIONS,
                )
            ]
            cells = [
                *(each.any(axis=1).mean() for each in found[:2]), found[2].mean(), power_alone(spread, repeats),
                found[3][:, 0].mean(), found[4].mean(),
            ]  # fmt: skip
            print(f"| {spread:.1%} | {repeats} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)
    print("\n| spread of sessions | sessions of each side | none slower | all 3% slower | 6% slower, alone |")
    print("|---|---|---|---|---|")
    for session in SESSIONS:
        for repeats in REPEATS:
            cells = [
                shown(rng, families, changes, 0.01, repeats, session).any(axis=1).mean()
                for changes in (none, [TOLERANCE] * CONFIGURATIONS, [slower])
            ]
            print(f"| {session:.0%} | {repeats} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()

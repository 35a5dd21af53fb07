"""Let `multicard tune` search a scenario whose whole matrix has run, with several seeds, and compare what it finds.

    multicard run benchmarks/tune.yaml
    python benchmarks/tune.py benchmarks/tune.yaml

The search is that of the command; what it asks for has run, so that no seed runs anything.
"""

import argparse
from pathlib import Path

from multicard.config.load import read_experiment
from multicard.search.core import Search
from multicard.search.scenario import RunResult, ScenarioSpace
from multicard.stats.interval import Interval
from multicard.stats.pool import geometric_mean_interval, ratio_of
from multicard.stats.samples import geometric_mean

SHARE = 0.25  # of the time of the whole matrix, which a search may spend


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    experiment = read_experiment(arguments.config)
    space = ScenarioSpace(experiment, next(iter(experiment.scenarios)), "throughput")
    results: dict[tuple[str, int], RunResult] = {
        (key, run.parameters.repeat): space.result(run) for key, runs in space.repeats.items() for run in runs
    }
    whole_s = sum(each.cost_s for each in results.values())
    values = {
        key: {run.parameters.repeat: results[key, run.parameters.repeat].value for run in runs}
        for key, runs in space.repeats.items()
    }
    ranked = sorted(values, key=lambda key: -geometric_mean(values[key]))
    print(
        f"whole matrix: {len(results)} runs, {whole_s:.0f} s; best:",
        space.describe(ranked[0]),
        in_words(values[ranked[0]]),
    )
    print("\n| seed | runs | time, of the matrix | found | place in the matrix | its throughput, of the best |")
    print("|---|---|---|---|---|---|")
    for seed in range(arguments.seeds):
        search = Search(space.space, space.maximize, space.scenario.repeats, SHARE * whole_s, seed)
        runs = 0
        while asked := search.ask():
            for key, repeat in asked:
                search.tell(key, repeat, results[key, repeat].value, results[key, repeat].cost_s)
                runs += 1
        found = search.best
        ratio = ratio_of(values[found], values[ranked[0]])
        print(
            f"| {seed} | {runs} | {search.spent / whole_s:.0%} | {space.describe(found)} "
            f"| {ranked.index(found) + 1} of {len(ranked)} | {in_words(ratio)} |"
        )


def in_words(values: dict[int, float | None] | Interval) -> str:
    """A mean, or a ratio, with its 95% interval."""
    found = values if isinstance(values, Interval) else geometric_mean_interval(values)
    return f"{found.value:.3g}" + ("" if found.low is None else f" [{found.low:.3g}, {found.high:.3g}]")


if __name__ == "__main__":
    main()

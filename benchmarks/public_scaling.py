"""Errors of predicted throughput, and how often its intervals hold, on measurements that others published.

    python benchmarks/public_scaling.py lambda_h100_fp16.csv --from 1,2,4 --to 8
    python benchmarks/public_scaling.py llm_foundry.csv --smallest 3

A table has a row for each measurement: `devices`, `throughput_samples_per_s` or `tokens_per_s`, and other columns that
together name the job. Where it has a column `node`, several nodes measured the same job: three of those that ran on a
number of devices, drawn 200 times, are three repeats, and an interval holds if the geometric mean of all nodes is
inside. Else each row is one measurement.

The width of intervals depends on `Prior.deviation`, which was chosen by the first table: the smallest of `DEVIATIONS`
with which at least 95% of the intervals hold, from all numbers of devices but the largest and from the smallest two. So
that no job judges an interval that it helped to choose, a table with nodes is predicted job by job with the deviation
that its other jobs choose. Others are predicted with that of the tool.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from multicard.analysis.scaling.posterior import Prior
from multicard.analysis.scaling.prediction import PRIOR, Point, predict, superlinear

RATES = ("throughput_samples_per_s", "tokens_per_s")
DEVIATIONS = (0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02)
HOLDS = 0.95
CHOOSING = 30  # resamplings by which a deviation is chosen


@dataclass(frozen=True)
class Job:
    """Seconds of a step with one sample on each device, of each measurement, by number of devices."""

    name: str
    seconds: dict[int, np.ndarray]

    def points(self, counts: Sequence[int], repeats: int | None, rng: np.random.Generator) -> list[Point]:
        """As many measurements on each number of devices, or all."""
        found = []
        for count in counts:
            own = self.seconds[count]
            chosen = own if repeats is None else rng.choice(own, min(repeats, len(own)), replace=False)
            found.append(Point(count, count, 1.0, tuple(chosen), (0.0,) * len(chosen)))
        return found

    def flag(self) -> dict[int, float]:
        """Numbers of devices whose measurements the tool calls super-linear."""
        return superlinear(self.points(sorted(self.seconds), None, np.random.default_rng(0)), PRIOR)


def read(path: Path) -> list[Job]:
    """Jobs of a table."""
    table = pd.read_csv(path)
    rate = next((name for name in RATES if name in table), None)
    if rate is None or "devices" not in table:
        raise SystemExit(f"{path}: found {', '.join(table)}, expected devices and one of {', '.join(RATES)}")
    names = [name for name in table if name not in (rate, "devices", "node") and table[name].nunique() > 1]
    return [
        Job(
            " ".join(map(str, key)),
            {int(count): (count / each[rate]).to_numpy() for count, each in own.groupby("devices")},
        )
        for key, own in (table.groupby(names) if names else [((path.stem,), table)])
    ]


def trials(
    job: Job, counts: Sequence[int], to: int, resamplings: int, repeats: int | None, prior: Prior
) -> list[tuple[float, bool, float]] | str:
    """Error, whether the interval holds, and its high over low, of each resampling; or why nothing is predicted."""
    rng = np.random.default_rng(0)
    truth = float(np.exp(np.log(job.seconds[to]).mean()))
    found = []
    for _ in range(resamplings):
        predicted = predict(job.points(counts, repeats, rng), to, to, 1.0, prior=prior)
        step_s = predicted.step_s
        if step_s is None:
            return predicted.reason or ""
        found.append((truth / step_s.value - 1, step_s.low <= truth <= step_s.high, step_s.high / step_s.low))
    return found


def choose(jobs: Sequence[Job], repeats: int) -> dict[str, Prior]:
    """The prior that the other jobs choose, for each job; and under "" that of all."""
    holds: dict[float, dict[str, float]] = {}
    for deviation in DEVIATIONS:
        prior = replace(PRIOR, deviation=deviation)
        holds[deviation] = {}
        for job in jobs:
            counts = sorted(job.seconds)
            cases = {tuple(counts[:-1]), tuple(counts[:2])}
            held = [trials(job, case, counts[-1], CHOOSING, repeats, prior) for case in cases]
            holds[deviation][job.name] = float(np.mean([each[1] for own in held for each in own]))
    found = {}
    for name in ("", *(job.name for job in jobs)):
        others = [job.name for job in jobs if job.name != name]
        enough = [each for each, own in holds.items() if others and np.mean([own[job] for job in others]) >= HOLDS]
        widest = max(DEVIATIONS) if others else PRIOR.deviation
        found[name] = replace(PRIOR, deviation=min(enough, default=widest))
    return found


def main() -> None:
    """Print a line for each job, and one over all that are not flagged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--from", dest="counts", metavar="N,...", help="numbers of devices to predict from")
    parser.add_argument("--to", type=int, metavar="N", help="number of devices to predict")
    parser.add_argument("--smallest", type=int, metavar="K", help="predict the largest number from the smallest K")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--resamplings", type=int, default=200, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args()
    if (arguments.counts is None or arguments.to is None) == (arguments.smallest is None):
        parser.error("expected --from and --to, or --smallest")
    jobs = read(arguments.table)
    flags = {job.name: job.flag() for job in jobs}
    several = max(len(own) for job in jobs for own in job.seconds.values()) > 1
    resamplings = arguments.resamplings if several else 1
    priors = choose([job for job in jobs if not flags[job.name]], arguments.repeats) if several else {}
    if several:
        of_all, of_tool = (100 * prior.deviation for prior in (priors[""], PRIOR))
        print(f"deviation that all jobs choose: {of_all:g} % (the tool's: {of_tool:g} %)")
    errors, held = [], []
    for job in jobs:
        known = sorted(job.seconds)
        if arguments.smallest is None:
            counts, to = [int(each) for each in arguments.counts.split(",")], arguments.to
        else:
            counts, to = known[: arguments.smallest], known[-1]
        if not {*counts, to} <= {*known} or to in counts:
            continue
        prior = priors.get(job.name, PRIOR)
        found = trials(job, counts, to, resamplings, arguments.repeats if several else None, prior)
        about = f"{job.name}: {', '.join(map(str, counts))} → {to}"
        if isinstance(found, str):
            print(f"{about}: not predicted: {found}")
            continue
        of_job, holds, widths = map(np.array, zip(*found, strict=True))
        line = f"{about}: error {100 * np.median(of_job):+.1f} %, coverage {100 * holds.mean():.0f} %"
        line += f", high/low {np.median(widths):.2f}"
        line += f", deviation {100 * prior.deviation:g} %" if several else ""
        if flags[job.name]:
            line += "; flagged: " + ", ".join(
                f"{gain:.2f} times as fast per device on {count} as on fewer" for count, gain in flags[job.name].items()
            )
        else:
            errors += list(abs(of_job))
            held += list(holds)
        print(line)
    if held:
        print(f"median error {100 * np.median(errors):.1f} %, coverage {100 * np.mean(held):.0f} %")


if __name__ == "__main__":
    main()

"""Predicted step times against measurements that others published: errors, and how often intervals hold.

    python benchmarks/public_scaling.py FOLDER
    python benchmarks/public_scaling.py FOLDER --refit

FOLDER has tables of measurements, one a row: `devices`, `throughput_samples_per_s` or `tokens_per_s`, and columns that
together name the job. Jobs that share a batch have the column `scaling`, with `strong`, and the batch of a device or
of all devices. Of every job each two, or three, numbers of devices that follow each other predict each larger one, by
`multicard.answers.scaling.prediction.predict` with the prior that the tool has. Nothing is left out because of what
came out: a caveat is counted where the tool gives one by what it was given. What the tool refuses is refused here, too:
jobs whose samples neither stay nor shrink with the devices.

Where a table has several measurements of a number of devices (`node`, `repeat`), three of them, drawn `--resamplings`
times with a fixed seed, are three repeats, and the truth is the geometric mean of all. Each prediction of a job has the
same weight.

Simple predictors stand beside it: the time of the largest number of devices that was given (`last`), and curves through
all that were given, by least squares. They have no intervals of their own, so they get the 95% quantile of their
absolute errors of the other jobs.

With `--refit` the constants of the prior in `GRID` are chosen by the least mean interval score of all tables but
those of one source, which is then predicted, and likewise of all jobs but an eighth.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from multicard.answers.scaling.posterior import ScalingPrior
from multicard.answers.scaling.prediction import PRIOR, predict
from multicard.answers.scaling.step_model import ScalingPoint
from multicard.stats.interval import LEVEL

RATES = ("throughput_samples_per_s", "tokens_per_s")
# Columns that name no job: which of several measurements it is, results, and what follows from the number of devices.
NO_NAMES = (
    "devices", "node", "repeat", "global_batch_size", "batch_size_per_device", "throughput_from", "table",
    "median_train_step_time_s", "time_to_train_s", "tokens_per_s_per_device", "memory_gib", "source_file",
)  # fmt: skip
# Who published a table, by the beginning of its name; else the name.
SOURCES = ("lambda", "nvidia_examples")
SAME = 0.05  # relative difference up to which samples are the same
REPEATS = 3
NEAR = 2.0  # times as many devices as the largest number that was given: a target is near up to this
FOLDS = 8
GRID = {
    "deviation": (0.005, 0.01, 0.02),
    "freedom_beyond": (1e9, 4.0, 2.0, 1.5),
    "growth": (0.01, 0.02),
}
TAIL = (1 - LEVEL) / 2


@dataclass(frozen=True)
class Job:
    """What was measured of a job on several numbers of devices."""

    name: str
    source: str  # who published it
    samples: dict[int, float]  # of a device in a step, by the number of devices; relative if they stay
    step_s: dict[int, np.ndarray]  # seconds of a step, of each measurement

    @property
    def has_repeats(self) -> bool:
        """True if there are several measurements of a number of devices."""
        return max(len(steps) for steps in self.step_s.values()) > 1

    def truth(self, count: int) -> float:
        """Logarithm of the time of a step."""
        return float(np.log(self.step_s[count]).mean())

    def point(self, count: int, chance: np.random.Generator) -> ScalingPoint:
        """Return up to `REPEATS` measurements as the tool would have them of runs."""
        steps = self.step_s[count]
        chosen = chance.choice(steps, min(REPEATS, len(steps)), replace=False)
        return ScalingPoint(count, count, self.samples[count], tuple(chosen), (0.0,) * len(chosen))


@dataclass(frozen=True)
class Case:
    """A prediction to make: what is given, and the number of devices that is asked for."""

    job: Job
    given: tuple[ScalingPoint, ...]
    target: int
    weight: float

    @property
    def reach(self) -> float:
        """How many times as many devices as the largest number that is given."""
        return self.target / self.given[-1].devices

    @cached_property
    def truth(self) -> float:
        """Logarithm of the measured time of a step."""
        return self.job.truth(self.target)


@dataclass(frozen=True)
class Outcome:
    """What was predicted, in logarithms, and how it turned out."""

    case: Case
    low: float
    value: float
    high: float
    is_flagged: bool = False  # the tool has a caveat about what it was given

    @property
    def error(self) -> float:
        """Measured over predicted time, less 1: above zero if the job is slower than predicted."""
        return float(np.expm1(self.case.truth - self.value))

    @property
    def interval_score(self) -> float:
        """T. Gneiting, A. Raftery, Journal of the American Statistical Association 102, 2007."""
        missed = max(0.0, self.low - self.case.truth, self.case.truth - self.high)
        return self.high - self.low + missed / TAIL

    @property
    def crps(self) -> float:
        """Continuous ranked probability score of the distribution of two halves of normal ones with these quantiles."""
        levels = (np.arange(200) + 0.5) / 200
        z = norm.ppf(levels)
        sides = np.where(z < 0, self.value - self.low, self.high - self.value) / norm.ppf(1 - TAIL)
        short = self.case.truth - (self.value + sides * z)
        return float(2 * np.mean(np.where(short >= 0, levels, levels - 1) * short))


def read(path: Path) -> list[Job]:
    """Return the jobs of a table that the tool would predict; none if it is no table of such measurements."""
    table = pd.read_csv(path)
    rate = next((name for name in RATES if name in table), None)
    if rate is None or "devices" not in table:
        return []
    is_strong = table["scaling"].eq("strong") if "scaling" in table else pd.Series(False, index=table.index)
    table["samples"] = 1.0
    if "global_batch_size" in table:
        table["samples"] = table["global_batch_size"] / table["devices"]
    elif "batch_size_per_device" in table:
        table.loc[is_strong, "samples"] = table.loc[is_strong, "batch_size_per_device"].astype(float)
        table["batch"] = table["batch_size_per_device"].where(~is_strong)
    names = [name for name in table if name not in (*NO_NAMES, rate, "samples")]
    source = next((source for source in SOURCES if path.stem.startswith(source)), path.stem)
    jobs = []
    for key, own in table.groupby(names, dropna=False):
        samples = own.groupby("devices")["samples"].median().to_dict()
        steps = {int(count): (samples[count] * count / rows[rate]).to_numpy() for count, rows in own.groupby("devices")}
        if _stay_or_shrink(samples):
            name = " ".join(str(part) for part in key if part == part)
            jobs.append(Job(name, source, {int(count): float(each) for count, each in samples.items()}, steps))
    return jobs


def _stay_or_shrink(samples: dict[int, float]) -> bool:
    """True if each device has as many samples on every number of devices, or all together have."""
    each = np.array([*samples.values()])
    together = each * np.array([*samples])
    return any(np.allclose(values, values[-1], rtol=SAME) for values in (each, together))


def cases(jobs: Sequence[Job], number: int, resamplings: int) -> Iterator[Case]:
    """Yield each larger number of devices, from each so many smaller ones that follow each other."""
    for job in jobs:
        counts = sorted(job.step_s)
        times = resamplings if job.has_repeats else 1
        for first in range(len(counts) - number):
            given, larger = counts[first : first + number], counts[first + number :]
            chance = np.random.default_rng(0)
            for _ in range(times):
                points = tuple(job.point(count, chance) for count in given)
                for target in larger:
                    yield Case(job, points, target, 1 / times)


def by_the_tool(case: Case, prior: ScalingPrior = PRIOR) -> Outcome:
    """Predict as `multicard recommend --devices` does."""
    found = predict(case.given, case.target, case.target, case.job.samples[case.target], prior)
    low, value, high = np.log([found.step_s.low, found.step_s.value, found.step_s.high])
    flags = ("super-linear", "the runs deviate")
    return Outcome(case, low, value, high, any(caveat.startswith(flags) for caveat in found.caveats))


Curve = Callable[[np.ndarray], np.ndarray]
# What grows with the devices in the time that a device takes for a sample.
CURVES: dict[str, Curve] = {
    "Amdahl": lambda n: n,
    "ring": lambda n: 1 - 1 / n,
}


def simply(case: Case, method: str) -> float:
    """Return the logarithm of the time by a simple predictor."""
    counts = np.array([point.devices for point in case.given], float)
    samples = np.array([point.samples for point in case.given])
    times = np.exp([np.log(point.step_s).mean() for point in case.given]) / samples  # of a sample of a device
    of_target = np.log(case.job.samples[case.target])
    if method == "last":
        return of_target + np.log(times[-1])
    if method == "log-linear":
        slope, level = np.polyfit(np.log(counts), np.log(times), 1)
        return of_target + level + slope * np.log(case.target)
    grows = CURVES[method]
    terms = np.stack([np.ones_like(counts), grows(counts)]).T / times[:, None]  # relative errors count
    level, growth = np.linalg.lstsq(terms, np.ones_like(counts), rcond=None)[0]
    time = level + growth * grows(np.array(float(case.target)))
    return of_target + float(np.log(max(time, 0.01 * times[-1])))


def by_a_simple_predictor(chosen: Sequence[Case], method: str) -> list[Outcome]:
    """Predict with the intervals that the errors of other jobs give."""
    values = np.array([simply(case, method) for case in chosen])
    errors = abs(np.array([case.truth for case in chosen]) - values)
    jobs = np.array([case.job.name for case in chosen])
    reach = {job: float(np.quantile(errors[jobs != job], LEVEL)) for job in set(jobs.tolist())}
    return [
        Outcome(case, value - reach[case.job.name], value, value + reach[case.job.name])
        for case, value in zip(chosen, values.tolist(), strict=True)
    ]


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the columns of a row about some predictions."""
    weights = np.array([outcome.case.weight for outcome in outcomes])

    def share(holds: Callable[[Outcome], bool]) -> str:
        return f"{100 * np.average([holds(outcome) for outcome in outcomes], weights=weights):.1f}%"

    widths = np.exp([outcome.high - outcome.low for outcome in outcomes])
    return {
        "predictions": round(weights.sum()),
        "jobs": len({(outcome.case.job.source, outcome.case.job.name) for outcome in outcomes}),
        "median error": f"{100 * _median([abs(outcome.error) for outcome in outcomes], weights):.1f}%",
        "hold": share(lambda outcome: outcome.low <= outcome.case.truth <= outcome.high),
        "slower": share(lambda outcome: outcome.case.truth > outcome.high),
        "faster": share(lambda outcome: outcome.case.truth < outcome.low),
        "high/low": f"{_median(widths, weights):.2f}",
        "interval score": f"{np.average([outcome.interval_score for outcome in outcomes], weights=weights):.3f}",
        "CRPS": f"{np.average([outcome.crps for outcome in outcomes], weights=weights):.4f}",
    }


def _median(values: Sequence[float], weights: np.ndarray) -> float:
    order = np.argsort(values)
    return float(np.asarray(values)[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])


def groups(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return predictions by what they are from, and how far they reach."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        number = {2: "two", 3: "three"}[len(outcome.case.given)]
        reach = "twice" if outcome.case.reach <= NEAR else "more"
        found.setdefault(f"{number}, {reach}", []).append(outcome)
    return found


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table in Markdown."""
    print("|", " | ".join(rows[0]), "|")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        print("|", " | ".join(str(value) for value in row.values()), "|", flush=True)
    print()


def priors() -> list[ScalingPrior]:
    """Return the priors of `GRID`."""
    return [replace(PRIOR, **dict(zip(GRID, values, strict=True))) for values in itertools.product(*GRID.values())]


def refitted(by_prior: dict[ScalingPrior, list[Outcome]], part: Callable[[Case], str]) -> list[Outcome]:
    """Return predictions of each part with the prior that the other parts choose, and print that prior."""
    found = []
    for name in sorted({part(outcome.case) for outcome in next(iter(by_prior.values()))}):
        scores = {}
        for prior, outcomes in by_prior.items():
            others = [outcome for outcome in outcomes if part(outcome.case) != name]
            scores[prior] = sum(
                np.average([one.interval_score for one in group], weights=[one.case.weight for one in group])
                for group in groups(others).values()
            )
        chosen = min(scores, key=scores.__getitem__)
        print(f"without {name}:", ", ".join(f"{constant} {getattr(chosen, constant):g}" for constant in GRID))
        found += [outcome for outcome in by_prior[chosen] if part(outcome.case) == name]
    print()
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resamplings", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--refit", action="store_true", help="choose the prior without what it predicts; takes long")
    arguments = parser.parse_args()
    jobs = [job for path in sorted(arguments.folder.glob("*.csv")) for job in read(path)]
    chosen = [case for number in (2, 3) for case in cases(jobs, number, arguments.resamplings)]
    if not chosen:
        raise SystemExit(f"{arguments.folder}: found no job on three numbers of devices in tables of measurements")
    if arguments.refit:
        by_prior = {prior: [by_the_tool(case, prior) for case in chosen] for prior in priors()}
        names = sorted({case.job.name.split()[0] for case in chosen})
        fold = {name: at % FOLDS for at, name in enumerate(np.random.default_rng(0).permutation(names).tolist())}
        parts: dict[str, Callable[[Case], str]] = {
            "without its source": lambda case: case.job.source,
            "without its jobs": lambda case: f"jobs {fold[case.job.name.split()[0]]}",
        }
        for how, part in parts.items():
            outcomes = refitted(by_prior, part)
            print_rows([{"from, up to": name, "prior": how, **summary(own)} for name, own in groups(outcomes).items()])
        return
    outcomes = [by_the_tool(case) for case in chosen]
    rows = []
    for name, own in groups(outcomes).items():
        rows.append({"from, up to": name, "by": "multicard", **summary(own)})
        for method in ("last", "log-linear", *CURVES):
            simple = by_a_simple_predictor([outcome.case for outcome in own], method)
            rows.append({"from, up to": name, "by": method, **summary(simple)})
    print_rows(rows)
    near = [outcome for outcome in outcomes if outcome.case.reach <= NEAR]
    print_rows(
        [
            {"source": source, "from": number, **summary(own)}
            for source in sorted({outcome.case.job.source for outcome in near})
            for number in (2, 3)
            if (own := [o for o in near if o.case.job.source == source and len(o.case.given) == number])
        ]
    )
    flagged = [outcome for outcome in near if outcome.is_flagged]
    unflagged = [outcome for outcome in near if not outcome.is_flagged]
    print_rows([{"caveat": name, **summary(own)} for name, own in (("yes", flagged), ("no", unflagged)) if own])


if __name__ == "__main__":
    main()

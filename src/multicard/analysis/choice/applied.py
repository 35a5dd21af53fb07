"""What to apply for: the job, the number of devices and why, and the series of runs that shows how it scales."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from multicard.analysis.choice.answers import ChosenSpeedup, speedups
from multicard.analysis.choice.choice import Choice
from multicard.analysis.choice.choices import Choices, choices
from multicard.analysis.scaling.headline import STEP_TIME
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS, implausible
from multicard.core.errors import UserError
from multicard.core.text import listed
from multicard.core.units import percent
from multicard.experiment.workload import Workload
from multicard.results.results import Results
from multicard.stats.interval import Interval, verdict

UNKNOWN = "unknown"
OTHER_SCALING = {"strong": "weak", "weak": "strong"}


class WorkMeasure(NamedTuple):
    """How long so much work takes: the measure that shows it, and seconds by an amount and a value of the measure."""

    measure: str
    seconds: Callable[[float, float], float]


# By what the work of a run is counted in.
WORK: Mapping[str, WorkMeasure] = {
    "samples": WorkMeasure("throughput_samples_per_s", lambda amount, per_s: amount / per_s),
    "tokens": WorkMeasure("tokens_per_s", lambda amount, per_s: amount / per_s),
    "steps": WorkMeasure(STEP_TIME, lambda amount, seconds: amount * seconds),
    "epochs": WorkMeasure("estimated_epoch_time_s", lambda amount, seconds: amount * seconds),
}


@dataclass(frozen=True)
class Request:
    """What is applied for: `runs` runs of so much work each."""

    amount: float  # work of a run, counted in `unit`
    unit: str  # a key of `WORK`
    runs: int = 1
    devices: int | None = None  # None for the recommended number
    gpus_per_node: int | None = None  # None for those of a node that was measured
    least_efficiency: float = 0.7  # share of ideal scaling from which on a number of devices is recommended


def proposed_job(results: Results) -> tuple[Choices, list[str]]:
    """Return the job with speed-ups and the most completed runs, and the names of the others.

    Raises `UserError` if no completed run shows its throughput.
    """
    tables = choices(results)
    rated = [job for job in tables if job.rows]
    if not rated:
        raise UserError(
            "--proposal: no completed run tells its throughput, expected one; of a script whose samples are unknown, "
            "state --samples-per-step or --samples-per-device"
        )
    proposed = max(rated, key=lambda job: (bool(speedups(job)), _completed_runs(job)))
    return proposed, [job.job for job in tables if job is not proposed]


def proposed_choice(job: Choices, request: Request) -> tuple[Choice, str]:
    """Return the choice to apply for, and why: on the stated number of devices, else on the recommended one.

    Raises `UserError` if no run completed on the devices that are stated, or none shows the time of the work.
    """
    alike = [row for row in job.rows if row.trains_like_reference]
    same = [row for row in alike if not row.changes]
    are_scaled = len({row.devices for row in same}) > 1
    candidates = replace(job, rows=same if are_scaled else alike)
    recommended, why = _recommended(candidates, request.least_efficiency)
    if request.devices in (None, recommended.devices):
        row, reason = recommended, f"{job.on(recommended.devices)}: {why}."
    else:
        # Among those on as many devices, a candidate goes before one that only differs in its batch.
        on_stated = [row for row in alike if row.devices == request.devices]
        if not on_stated:
            raise UserError(
                f"--devices: found {request.devices}, expected a number on which a run of {job.job} completed: "
                f"{_device_counts(alike, 'or')} (multicard recommend --devices predicts others)"
            )
        candidate_keys = {row.key for row in candidates.rows}
        row = min(on_stated, key=lambda row: (row.key not in candidate_keys, row.time_s.value))
        reason = f"{job.on(row.devices)} as stated; recommended: {job.on(recommended.devices)}, {why}."
    measure = WORK[request.unit].measure
    if not row.configuration.values(measure):
        raise UserError(f"--{request.unit}: no run on {job.on(row.devices)} tells {measure}, expected other work")
    doubt = implausible(row.speedup.value, row.devices) if row.speedup else None
    return row, f"{reason} It is {doubt}." if doubt else reason


def _recommended(job: Choices, least_efficiency: float) -> tuple[Choice, str]:
    """Return the choice on the most devices that are efficient and not shown to be no faster than one, and why.

    Without any it is the fastest on one device, else the fastest of all.
    """
    rule = f"at least {percent(least_efficiency)} efficient and faster than one"
    scaled = speedups(job)
    good = [speedup for speedup in scaled if _efficiency(speedup) >= least_efficiency and _may_be_faster(speedup.ratio)]
    if good:
        best = max((speedup.choice for speedup in good), key=lambda row: row.devices)
        less_efficient = [
            f"; on {speedup.choice.devices}: {percent(_efficiency(speedup))}"
            for speedup in scaled
            if speedup.choice.devices > best.devices
        ]
        why = f"the most of those measured ({_device_counts(job.rows)}) that are {rule}{''.join(less_efficient)}"
        return best, why
    fastest = min(job.rows, key=lambda row: row.time_s.value)
    if len({row.devices for row in job.rows}) == 1:
        return fastest, "the only number that was measured"
    on_one = [row for row in job.rows if row.devices == 1]
    if not on_one:
        return fastest, "the fastest that was measured; no run on one tells how efficient it is"
    tried = ", ".join(
        f"{speedup.choice.devices}: {percent(_efficiency(speedup))}"
        f"{'' if _may_be_faster(speedup.ratio) else ', not shown to be faster'}"
        for speedup in scaled
    )
    # One that also ran on several devices shows how it scales.
    best = min(on_one, key=lambda row: (len(series_of(job, row)) == 1, row.time_s.value))
    return best, f"no larger number that was measured is {rule}{f' ({tried})' if tried else ''}"


def series_of(job: Choices, choice: Choice) -> list[Choice]:
    """Return the choices in the same configuration on all numbers of devices and nodes, after their baseline."""
    workload = choice.configuration.workload
    shared = choice.configuration.rest(BASELINE_DIFFERS)
    alike = [row for row in job.rows if row.configuration.rest(BASELINE_DIFFERS) == shared]
    several = sorted((row for row in alike if row.devices > 1), key=lambda row: row.time_s.value)
    method = choice.configuration[workload.method]
    if choice.devices == 1:
        method = _scaled_method(method, several, workload)
    on_one = {row.configuration[workload.method]: row for row in alike if row.devices == 1}
    baselines = [on_one[name] for name in workload.baselines(method) if name in on_one]
    series = baselines[:1] + [row for row in several if row.configuration[workload.method] == method]
    return sorted(series, key=lambda row: (row.devices, row.configuration["nodes"] or 1))


def _scaled_method(method: str, scaled: Sequence[Choice], workload: Workload) -> str:
    """Return the method on several devices that a method on one is the baseline of; the same where it has none."""
    methods = [row.configuration[workload.method] for row in scaled]
    for name in (method, *methods):
        if name in methods and method in workload.baselines(name):
            return name
    return method


def scaling_of(series: Iterable[Choice], kinds: Mapping[str, str]) -> str:
    """Return how a series scales, by `speedup.scaling_of_runs`: strong, weak or unknown."""
    scalings = {kinds.get(row.configuration.completed[0].run, UNKNOWN) for row in series if row.devices > 1}
    return scalings.pop() if len(scalings) == 1 else UNKNOWN


def other_series(job: Choices, series: Sequence[Choice], kinds: Mapping[str, str]) -> dict[str, list[Choice]]:
    """Return the series that scales in the other way, strong or weak, by how it scales; empty without one.

    Of several it is the one whose parameters differ least, then the longest, then the fastest.
    """
    other_scaling = OTHER_SCALING.get(scaling_of(series, kinds))
    if other_scaling is None:
        return {}
    reference = series[-1].configuration.parameters
    candidates = []
    for row in job.rows:
        other = series_of(job, row) if row.devices > 1 else []
        if scaling_of(other, kinds) == other_scaling and len({choice.devices for choice in other}) > 1:
            parameters = row.configuration.parameters
            differing = sum(reference.get(name) != value for name, value in parameters.items())
            candidates.append(((differing, -len(other), -row.rate.value), other))
    if not candidates:
        return {}
    _, nearest = min(candidates, key=lambda candidate: candidate[0])
    return {other_scaling: nearest}


def _completed_runs(job: Choices) -> int:
    return sum(len(configuration.completed) for configuration in job.configurations)


def _efficiency(speedup: ChosenSpeedup) -> float:
    return speedup.ratio.value / speedup.choice.devices


def _may_be_faster(ratio: Interval) -> bool:
    """True if a speed-up is shown, or if a single repeat leaves it open."""
    return verdict(ratio) in ("more", "unknown")


def _device_counts(rows: Iterable[Choice], conjunction: str = "and") -> str:
    return listed([str(count) for count in sorted({row.devices for row in rows})], conjunction)

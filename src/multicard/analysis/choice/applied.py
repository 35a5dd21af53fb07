"""What to apply for: the job, the number of devices and why, and the series of runs that shows how it scales."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.analysis.choice.choice import Choice
from multicard.analysis.choice.choices import Choices, choices
from multicard.analysis.choice.recommend import speedups
from multicard.analysis.evidence import Evidence
from multicard.analysis.scaling.headline import STEP_TIME
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS, implausible
from multicard.core.errors import UserError
from multicard.core.text import listed
from multicard.core.units import percent
from multicard.stats.interval import verdict

UNKNOWN = "unknown"
FASTER = ("more", "unknown")  # verdicts on a speed-up that may be one; of a single repeat nothing tells
# What the work of a run is counted in: the measure that tells how long it takes, and that time for so much of it.
WORK: Mapping[str, tuple[str, Callable[[float, float], float]]] = {
    "samples": ("throughput_samples_per_s", lambda amount, per_s: amount / per_s),
    "tokens": ("tokens_per_s", lambda amount, per_s: amount / per_s),
    "steps": (STEP_TIME, lambda amount, seconds: amount * seconds),
    "epochs": ("estimated_epoch_time_s", lambda amount, seconds: amount * seconds),
}


@dataclass(frozen=True)
class Request:
    """What is applied for: `runs` runs of so much work each."""

    amount: float  # work of a run
    of: str  # what of `WORK` that is counted in
    runs: int = 1
    devices: int | None = None  # None for the recommended number
    gpus_per_node: int | None = None  # None for those of a node that was measured
    least_efficiency: float = 0.7  # share of ideal scaling from which on a number of devices is recommended


def job_of(evidence: Evidence) -> tuple[Choices, list[str]]:
    """The job with speed-ups and the most completed runs, and the names of the others."""
    tables = choices(evidence)
    known = [each for each in tables if each.rows]
    if not known:
        raise UserError(
            "--proposal: no completed run tells its throughput, expected one; of a script whose samples are unknown, "
            "state --samples-per-step or --samples-per-device"
        )
    job = max(known, key=lambda each: (bool(speedups(each)), sum(len(one.completed) for one in each.configurations)))
    return job, [each.job for each in tables if each is not job]


def asked_of(job: Choices, request: Request) -> tuple[Choice, str]:
    """The row to apply for, and why: of the most devices that are efficient and shown to be faster, or as stated.

    Raises `UserError` if no run completed on the devices that are stated, or none tells the time of the work.
    """
    alike = [row for row in job.rows if row.trains_like_reference]
    same = [row for row in alike if not row.changes]
    own = replace(job, rows=same if len({row.devices for row in same}) > 1 else alike)
    best, why = _recommended(own, request.least_efficiency)
    row, reason = best, f"{job.on(best.devices)}: {why}."
    if request.devices not in (None, best.devices):
        rows = [each for rows in (own.rows, alike) for each in rows if each.devices == request.devices]
        if not rows:
            raise UserError(
                f"--devices: found {request.devices}, expected a number on which a run of {job.job} completed: "
                f"{_counts(alike, 'or')} (multicard recommend --devices predicts others)"
            )
        row = min(rows, key=lambda each: (each not in own.rows, each.time_s.value))
        reason = f"{job.on(row.devices)} as stated; recommended: {job.on(best.devices)}, {why}."
    measure = WORK[request.of][0]
    if not row.configuration.values(measure):
        raise UserError(f"--{request.of}: no run on {job.on(row.devices)} tells {measure}, expected other work")
    doubt = row.speedup and implausible(row.speedup.value, row.devices)
    return row, f"{reason} It is {doubt}." if doubt else reason


def _recommended(job: Choices, least: float) -> tuple[Choice, str]:
    """The row of the most devices that are efficient and not shown to be no faster than one, and why."""
    pairs = speedups(job)
    rule = f"at least {percent(least)} efficient and faster than one"
    good = [row for row, ratio in pairs if _efficiency(row) >= least and verdict(ratio) in FASTER]
    if good:
        best = max(good, key=lambda row: row.devices)
        more = [f"; on {row.devices}: {percent(_efficiency(row))}" for row, _ in pairs if row.devices > best.devices]
        return best, f"the most of those measured ({_counts(job.rows)}) that are {rule}{''.join(more)}"
    on_one = [row for row in job.rows if row.devices == 1]
    if len({row.devices for row in job.rows}) == 1:
        return job.fastest, "the only number that was measured"
    if not on_one:
        return job.fastest, "the fastest that was measured; no run on one tells how efficient it is"
    found = ", ".join(
        f"{row.devices}: {percent(_efficiency(row))}{'' if verdict(ratio) in FASTER else ', not shown to be faster'}"
        for row, ratio in pairs
    )
    best = min(on_one, key=lambda row: (len(series_of(job, row)) == 1, row.time_s.value))
    return best, f"no larger number that was measured is {rule}{f' ({found})' if found else ''}"


def series_of(job: Choices, of: Choice) -> list[Choice]:
    """The same configuration on all numbers of devices and nodes, with its baseline."""
    own, work = of.configuration, of.configuration.workload
    alike = [row for row in job.rows if row.configuration.rest(BASELINE_DIFFERS) == own.rest(BASELINE_DIFFERS)]
    several = sorted((row for row in alike if row.devices > 1), key=lambda row: row.time_s.value)
    method = own[work.method]
    if of.devices == 1:  # which may be the baseline of another method
        scaled = [row.configuration[work.method] for row in several]
        method = next((each for each in (method, *scaled) if each in scaled and method in work.baselines(each)), method)
    on_one = {row.configuration[work.method]: row for row in alike if row.devices == 1}
    base = [on_one[name] for name in work.baselines(method) if name in on_one][:1]
    found = [*base, *(row for row in several if row.configuration[work.method] == method)]
    return sorted(found, key=lambda row: (row.devices, row.configuration["nodes"] or 1))


def kind_of(rows: Iterable[Choice], kinds: Mapping[str, str]) -> str:
    """How a series scales, by `speedup.kinds_of`; `unknown` too where nothing tells it."""
    found = {kinds.get(row.configuration.completed[0].run, UNKNOWN) for row in rows if row.devices > 1}
    return found.pop() if len(found) == 1 else UNKNOWN


def other_series(job: Choices, own: Sequence[Choice], kinds: Mapping[str, str]) -> dict[str, list[Choice]]:
    """The series that scales in the other way, strong or weak, and differs least from this one; none without one."""
    other = {"strong": "weak", "weak": "strong"}.get(kind_of(own, kinds))
    mine = own[-1].configuration.parameters
    found = []
    for row in job.rows:
        series = series_of(job, row) if row.devices > 1 else []
        if kind_of(series, kinds) == other and len({each.devices for each in series}) > 1:
            unlike = sum(mine.get(name) != value for name, value in row.configuration.parameters.items())
            found.append((unlike, -len(series), -row.rate.value, len(found), series))
    return {other: min(found)[-1]} if found and other else {}


def _efficiency(row: Choice) -> float:
    return row.speedup.value / row.devices if row.speedup else 0.0


def _counts(rows: Iterable[Choice], last: str = "and") -> str:
    return listed([str(count) for count in sorted({row.devices for row in rows})], last)

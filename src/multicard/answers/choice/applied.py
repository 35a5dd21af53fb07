"""Find what a proposal applies for: the job, its number of devices, and the series of runs that shows its scaling."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from multicard.answers.choice.answers import ChosenSpeedup, speedups
from multicard.answers.choice.choice import Choice
from multicard.answers.choice.choices import Choices, choices
from multicard.answers.scaling.headline import STEP_TIME
from multicard.answers.scaling.speedup import BASELINE_DIFFERS, implausible
from multicard.core.errors import UserError
from multicard.core.text import listed
from multicard.core.units import percent
from multicard.programs.program import Program
from multicard.results.results import Results
from multicard.stats.interval import Interval, verdict

UNKNOWN = "unknown"
OTHER_SCALING = {"strong": "weak", "weak": "strong"}


class WorkMeasure(NamedTuple):
    """The measure from which the time of some work is computed.

    `measure` is a column of results. `seconds` takes an amount of work and a value of the measure, and returns the
    seconds that the work takes.
    """

    measure: str
    seconds: Callable[[float, float], float]


# The keys are the units in which the work of a run is counted: 1000 samples at 50 samples per second take 20 s, 1000
# steps of 0.05 s take 50 s.
WORK: Mapping[str, WorkMeasure] = {
    "samples": WorkMeasure("throughput_samples_per_s", lambda amount, per_s: amount / per_s),
    "tokens": WorkMeasure("tokens_per_s", lambda amount, per_s: amount / per_s),
    "steps": WorkMeasure(STEP_TIME, lambda amount, seconds: amount * seconds),
    "epochs": WorkMeasure("estimated_epoch_time_s", lambda amount, seconds: amount * seconds),
}


@dataclass(frozen=True)
class Request:
    """The work that a proposal applies for: a number of runs, and the work of each."""

    amount: float  # work of a run, counted in `unit`
    unit: str  # a key of `WORK`
    runs: int = 1
    devices: int | None = None  # the number that the user states; None for the recommended one
    gpus_per_node: int | None = None  # None for the number of GPUs on a node that was measured
    least_efficiency: float = 0.7  # no number of devices with a lower speed-up per device is recommended


def proposed_job(results: Results) -> tuple[Choices, list[str]]:
    """Return the job to propose, and the names of all other jobs of the results: empty if there is only one job.

    Jobs whose throughput is known are considered. Those with speed-ups are preferred, then those with more completed
    runs. Raises `UserError` if no completed run shows its throughput.
    """
    jobs = choices(results)
    # A job without a throughput has no rows.
    rated = [job for job in jobs if job.rows]
    if not rated:
        raise UserError(
            "--proposal: no completed run tells its throughput, expected one; of a script whose samples are unknown, "
            "state --samples-per-step or --samples-per-device"
        )
    proposed = max(rated, key=lambda job: (bool(speedups(job)), _completed_runs(job)))
    return proposed, [job.job for job in jobs if job is not proposed]


def proposed_choice(job: Choices, request: Request) -> tuple[Choice, str]:
    """Return the choice to apply for, and why: on the stated number of devices, else on the recommended one.

    Raises `UserError` if no run completed on the stated number of devices, or if no run of the choice has the measure
    from which the time of the work is computed.
    """
    alike = [row for row in job.rows if row.trains_like_reference]
    # A batch that grows with the devices changes the training. So choices with the reference's batch are preferred, if
    # they ran on several numbers of devices and so show how the job scales.
    unchanged = [row for row in alike if not row.changes]
    device_counts = {row.devices for row in unchanged}
    shows_scaling = len(device_counts) > 1
    candidates = unchanged if shows_scaling else alike
    job_of_candidates = replace(job, rows=candidates)
    recommended, why = _recommended(job_of_candidates, request.least_efficiency)
    recommended_devices = job.on(recommended.devices)
    if request.devices in (None, recommended.devices):
        row = recommended
        reason = f"{recommended_devices}: {why}."
    else:
        row = _fastest_on(request.devices, job, alike, candidates)
        reason = f"{job.on(row.devices)} as stated; recommended: {recommended_devices}, {why}."
    measure = WORK[request.unit].measure
    if not row.configuration.values(measure):
        raise UserError(f"--{request.unit}: no run on {job.on(row.devices)} tells {measure}, expected other work")
    doubt = implausible(row.speedup.value, row.devices) if row.speedup else None
    if doubt:
        reason = f"{reason} It is {doubt}."
    return row, reason


def _fastest_on(devices: int | None, job: Choices, alike: Sequence[Choice], candidates: Sequence[Choice]) -> Choice:
    """Return the fastest of `candidates` on a number of devices; without one there, the fastest of `alike`.

    `alike`: choices that train like the reference or differ from it in the batch alone; `candidates` are some of them.
    Raises `UserError` if none of them ran on that number of devices.
    """
    on_devices = [row for row in alike if row.devices == devices]
    if not on_devices:
        raise UserError(
            f"--devices: found {devices}, expected a number on which a run of {job.job} completed: "
            f"{_device_counts(alike, 'or')} (multicard recommend --devices predicts others)"
        )
    candidate_keys = {row.key for row in candidates}
    preferred = [row for row in on_devices if row.key in candidate_keys]
    return min(preferred or on_devices, key=lambda row: row.time_s.value)


def _recommended(job: Choices, least_efficiency: float) -> tuple[Choice, str]:
    """Return the recommended choice, and the reason in words.

    A choice is considered if its speed-up per device is at least `least_efficiency` and its speed-up may be above 1
    (`_may_be_faster`). The one on the most devices is recommended. If there is none, the fastest on one device is
    recommended, preferably of a configuration that also ran on several. If nothing ran on one device, it is the fastest
    choice of all.
    """
    rule = f"at least {percent(least_efficiency)} efficient and faster than one"
    scaled = speedups(job)
    efficient = [speedup for speedup in scaled if _efficiency(speedup) >= least_efficiency]
    worthwhile = [speedup.choice for speedup in efficient if _may_be_faster(speedup.ratio)]
    if worthwhile:
        best = max(worthwhile, key=lambda row: row.devices)
        larger = [speedup for speedup in scaled if speedup.choice.devices > best.devices]
        less_efficient = "".join(f"; on {_efficiency_words(speedup)}" for speedup in larger)
        return best, f"the most of those measured ({_device_counts(job.rows)}) that are {rule}{less_efficient}"
    fastest = min(job.rows, key=lambda row: row.time_s.value)
    device_counts = {row.devices for row in job.rows}
    if len(device_counts) == 1:
        return fastest, "the only number that was measured"
    on_one = [row for row in job.rows if row.devices == 1]
    if not on_one:
        return fastest, "the fastest that was measured; no run on one tells how efficient it is"
    # A configuration that also ran on several devices comes first, since it shows how the job scales.
    with_series = [row for row in on_one if len(series_of(job, row)) != 1]
    best = min(with_series or on_one, key=lambda row: row.time_s.value)
    reason = f"no larger number that was measured is {rule}"
    if scaled:
        tried = [_efficiency_and_doubt(speedup) for speedup in scaled]
        reason += f" ({', '.join(tried)})"
    return best, reason


def series_of(job: Choices, choice: Choice) -> list[Choice]:
    """Return the choices that show how the configuration of `choice` scales, by rising numbers of devices and nodes.

    These are the choices of its method (such as the strategy `ddp`) on several devices, and before them their baseline
    on one device, if it was measured. The baseline may be of another method (such as `single`). If `choice` itself is
    on one device, the method is the one that `choice` is the baseline of.
    """
    program = choice.configuration.program
    rows_of_configuration = _differing_only_in_scale(job, choice)
    on_several = [row for row in rows_of_configuration if row.devices > 1]
    on_several.sort(key=lambda row: row.time_s.value)
    method = _method(choice, program)
    if choice.devices == 1:
        method = _scaled_method(method, on_several, program)
    scaled = [row for row in on_several if _method(row, program) == method]
    # Sorting is stable, so of several choices on the same numbers of devices and nodes the fastest comes first.
    scaled.sort(key=lambda row: (row.devices, row.configuration["nodes"] or 1))
    on_one = {_method(row, program): row for row in rows_of_configuration if row.devices == 1}
    # The program names the methods of baselines, the best first. The first one that was measured is used.
    baselines = [on_one[name] for name in program.comparison.baselines(method) if name in on_one]
    return [*baselines[:1], *scaled]


def _method(choice: Choice, program: Program[Any]) -> str:
    """Return the value of the parameter that `program` names as its method, such as the strategy `ddp`."""
    method: str = choice.configuration[program.method]
    return method


def _differing_only_in_scale(job: Choices, choice: Choice) -> list[Choice]:
    """Return the choices whose parameters equal those of `choice`, except for strategy, devices and nodes.

    These three are `BASELINE_DIFFERS`: a run on several devices may differ in them from its baseline on one device.
    """
    shared = choice.configuration.rest(BASELINE_DIFFERS)
    return [row for row in job.rows if row.configuration.rest(BASELINE_DIFFERS) == shared]


def _scaled_method(method: str, scaled: Sequence[Choice], program: Program[Any]) -> str:
    """Return the method on several devices that `method` on one device is the baseline of.

    `scaled`: the choices on several devices, the fastest first. If one of them has `method` itself, that is returned.
    Otherwise it is the method of the fastest choice with this baseline. If there is none, `method` is returned.
    """
    methods = [_method(row, program) for row in scaled]
    for name in (method, *methods):
        if name in methods and method in program.comparison.baselines(name):
            return name
    return method


def scaling_of(series: Iterable[Choice], scaling_by_run: Mapping[str, str]) -> str:
    """Return how a series scales: `strong` or `weak`.

    It is `unknown` if the choices on several devices scale differently or in an unknown way, or if there are none.
    `scaling_by_run`: how runs scale, by their ids; made by `speedup.scaling_of_runs`.

    >>> scaling_of([], {"run": "strong"})
    'unknown'
    """
    first_runs = [row.configuration.completed[0].run for row in series if row.devices > 1]
    scalings = {scaling_by_run.get(run, UNKNOWN) for run in first_runs}
    return scalings.pop() if len(scalings) == 1 else UNKNOWN


def other_series(job: Choices, series: Sequence[Choice], scaling_by_run: Mapping[str, str]) -> dict[str, list[Choice]]:
    """Return a weak series of the job if `series` is strong, or a strong one if it is weak.

    The key of the result is the scaling of the series returned. The result is empty if the job has no such series, or
    if the scaling of `series` is unknown. Of several series it is the one whose parameters differ least from those of
    `series`, then the one with most choices, then the fastest.
    """
    other_scaling = OTHER_SCALING.get(scaling_of(series, scaling_by_run))
    if other_scaling is None:
        return {}
    reference = series[-1].configuration.parameters

    def distance(row: Choice, candidate: list[Choice]) -> tuple[int, int, float]:
        parameters = row.configuration.parameters
        differing = [name for name, value in parameters.items() if reference.get(name) != value]
        return len(differing), -len(candidate), -row.rate.value

    candidates = []
    on_several = [row for row in job.rows if row.devices > 1]
    for row in on_several:
        candidate = series_of(job, row)
        device_counts = {choice.devices for choice in candidate}
        shows_scaling = len(device_counts) > 1
        if shows_scaling and scaling_of(candidate, scaling_by_run) == other_scaling:
            candidates.append((distance(row, candidate), candidate))
    if not candidates:
        return {}
    _, nearest = min(candidates, key=lambda pair: pair[0])
    return {other_scaling: nearest}


def _completed_runs(job: Choices) -> int:
    return sum(len(configuration.completed) for configuration in job.configurations)


def _efficiency(speedup: ChosenSpeedup) -> float:
    return speedup.ratio.value / speedup.choice.devices


def _efficiency_words(speedup: ChosenSpeedup) -> str:
    """Return a number of devices with its efficiency, such as `8: 61%`."""
    return f"{speedup.choice.devices}: {percent(_efficiency(speedup))}"


def _efficiency_and_doubt(speedup: ChosenSpeedup) -> str:
    """Return a number of devices with its efficiency, such as `8: 61%` or `8: 11%, not shown to be faster`."""
    efficiency = _efficiency_words(speedup)
    return efficiency if _may_be_faster(speedup.ratio) else f"{efficiency}, not shown to be faster"


def _may_be_faster(ratio: Interval) -> bool:
    """True if a ratio is shown to be above 1, or has no p-value, as with a single repeat or with equal repeats."""
    return verdict(ratio) in ("more", "unknown")


def _device_counts(rows: Iterable[Choice], conjunction: str = "and") -> str:
    counts = sorted({row.devices for row in rows})
    return listed([str(count) for count in counts], conjunction)

"""Estimate how long an experiment will take: on GPUs by its work, anywhere by the runs that it has already."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from multicard.config.plan import Plan
from multicard.config.read_run import read_run_if_any
from multicard.config.runs import Run
from multicard.core.errors import UserError
from multicard.core.units import hours_and_minutes
from multicard.runs.parameters import JobParameters

# Seconds that are assumed for every run: to start the profiler, the processes, their libraries and the process group.
START_S = 30.0
# Seconds that are assumed for every profiled run: to end the processes, and to write, export and read the trace.
TRACE_S = 30.0


@dataclass(frozen=True)
class Cost:
    """The cost of runs on GPUs, if they run one after another."""

    wall_h: float  # hours from the start of the first run to the end of the last
    node_gpu_h: float  # hours × GPUs of the nodes that a run has for itself, summed over runs; unused GPUs count, too
    unknown: int  # number of runs whose amount of work is not known; they are left out of the hours


def estimate_cost(runs: Iterable[Run], time_limit_min: float, gpus_per_node: int) -> Cost:
    """Estimate the cost of the runs that need GPUs. Other runs are left out.

    A run counts with its time limit at most, plus the time for its trace. It holds all GPUs of its nodes, because
    nothing else may disturb its measurements.

    `gpus_per_node`: number of GPUs of a node. 0 if unknown: the largest number that any run uses on a node is assumed.
    """
    wall_h = node_gpu_h = 0.0
    unknown = 0
    on_gpus = [run for run in runs if run.parameters.device == "cuda"]
    held_per_node = gpus_per_node or max((run.parameters.devices_per_node for run in on_gpus), default=0)
    for run in on_gpus:
        p = run.parameters
        durations_s = run.program.resources(p, run.inputs).durations_s
        if durations_s is None:
            unknown += 1
            continue
        run_s = min(60.0 * time_limit_min, START_S + sum(durations_s.values()))
        trace_s = TRACE_S if p.profiler != "none" else 0.0
        hours = (run_s + trace_s) / 3600
        wall_h += hours
        node_gpu_h += p.nodes * held_per_node * hours
    return Cost(wall_h, node_gpu_h, unknown)


@dataclass(frozen=True)
class EarlierTimes:
    """How long runs may take, by completed runs of the same experiment; made by `times_by_earlier_runs`."""

    total_s: float  # of the runs whose length is known, one after another
    known: int  # number of these
    unknown: int  # number of runs that no completed run is like

    def sentence(self) -> str:
        """Return the times in words.

        >>> EarlierTimes(total_s=90.0, known=6, unknown=2).sentence()
        'about 1 min 30 s for 6 of the runs, as earlier ones took; 2 others are of unknown length'
        """
        words = f"about {hours_and_minutes(self.total_s)}"
        if not self.unknown:
            return f"{words}, as earlier runs took"
        are = "1 other is" if self.unknown == 1 else f"{self.unknown} others are"
        return f"{words} for {self.known} of the runs, as earlier ones took; {are} of unknown length"


def times_by_earlier_runs(plan: Plan, runs: Iterable[str]) -> EarlierTimes | None:
    """Estimate how long some runs of a plan take, by the wall time of completed runs; None if none is of any use.

    A run takes as long as the completed repeats of its configuration took on average. If none has completed, it takes
    as long as the completed runs of its scenarios.
    """
    folder = Path(plan.experiment.results) / "runs"
    by_configuration: defaultdict[JobParameters, list[float]] = defaultdict(list)
    by_scenario: defaultdict[str, list[float]] = defaultdict(list)
    scenarios_of: defaultdict[str, list[str]] = defaultdict(list)
    for scenario, members in plan.scenarios.items():
        for run in members:
            scenarios_of[run.id].append(scenario)
    for run in plan.runs.values():
        wall_time_s = _wall_time_s(folder / run.id)
        if wall_time_s is not None:
            by_configuration[_configuration(run)].append(wall_time_s)
            for scenario in scenarios_of[run.id]:
                by_scenario[scenario].append(wall_time_s)
    known_s = []
    unknown = 0
    for name in runs:
        of_repeats = by_configuration[_configuration(plan.runs[name])]
        of_scenarios = [time_s for scenario in scenarios_of[name] for time_s in by_scenario[scenario]]
        alike_s = of_repeats or of_scenarios
        if alike_s:
            known_s.append(fmean(alike_s))
        else:
            unknown += 1
    return EarlierTimes(sum(known_s), len(known_s), unknown) if known_s else None


def _configuration(run: Run) -> JobParameters:
    """Return the parameters that a run shares with its repeats."""
    return run.parameters.model_copy(update={"repeat": 1})


def _wall_time_s(folder: Path) -> float | None:
    """Return the wall time of a completed run; None for others, and if its record is damaged, as `status` reports."""
    with suppress(UserError):
        record = read_run_if_any(folder)
        if record is not None and record.completed:
            return record.wall_time_s
    return None

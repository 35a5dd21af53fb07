"""Find the ranks, GPUs and steps of a run in its traces, and write its run directory."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.adopt.table import TracedRun
from multicard.core.errors import TraceError, UserError
from multicard.core.files import described, write_csv, write_json
from multicard.core.layout import (
    ACTIVITY,
    ACTIVITY_INDEX,
    EPOCH_COLUMNS,
    EPOCHS,
    RUN,
    STEP_COLUMNS,
    STEPS,
    TRACE,
)
from multicard.core.text import gpu_name, natural
from multicard.core.trace_manifests import Captured
from multicard.core.values import Row
from multicard.programs import parameters_of
from multicard.results.run_files import RunFiles
from multicard.runs.record import AdoptedRecord, AdoptedTrace, ListedFile, ProfilerUse, RankRecord, RunRecord
from multicard.trace.extract import write_tables
from multicard.trace.files import open_trace
from multicard.trace.find_steps import FoundSteps, Owner, find_steps, with_steps
from multicard.trace.model import Steps, Trace
from multicard.trace.tables import STEPS as IN_STEPS
from multicard.trace.tables import activity_tables

# The numbers of steps in the captures of two ranks may differ by at most this.
MOST_APART = 1


@dataclass
class Traced:
    """A run and what its traces show."""

    # What a table states about the run.
    run: TracedRun
    # What shows the steps of the run, in words; None if nothing shows them.
    source: str | None
    # The rank of each process that ran kernels.
    ranks: dict[Owner, int]
    # The steps that count, equally many of each rank, without the stated warm-up; empty if nothing shows steps.
    steps: dict[Owner, Steps]
    # Number of GPUs that ran kernels.
    devices: int
    # Lines on what was corrected or left out when the activity tables were made; empty if they were not made.
    notices: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of steps that count; it is the same for each rank, and 0 if nothing shows steps."""
        return len(next(iter(self.steps.values())).starts) if self.steps else 0


def gather(
    runs: Sequence[TracedRun], results: Path | None, step_range: str | None = None, large: bool = False
) -> tuple[list[Traced], list[str]]:
    """Read the traces of runs, one run after another; return what they show, and a message for each run with an error.

    `results`: the folder for the run directories; None to write none. `step_range`: the name of the ranges that are
    steps; None to infer the steps (`find_steps`). `large`: True if gzipped traces may unpack to any size.
    """
    all_traced: list[Traced] = []
    errors: list[str] = []
    for run in runs:
        with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as scratch:
            try:
                traces = _open_traces(run, Path(scratch), large)
                traced = _analyze(run, traces, step_range)
                if results is not None:
                    _write_run(traced, traces, results / run.id)
                all_traced.append(traced)
            except TraceError as error:
                # A `TraceError` names only the trace, so the row is added.
                errors.append(f"{run.where}: {error}")
            except UserError as error:
                errors.append(str(error))
    return all_traced, errors


def _open_traces(run: TracedRun, scratch: Path, large: bool) -> list[Trace]:
    """Open the traces of a run; a report is exported to a folder in `scratch` first."""
    traces = []
    for number, path in enumerate(run.files):
        # Each trace has a folder of its own, because reports of two ranks may have the same name.
        folder = scratch / f"{number}"
        folder.mkdir(parents=True)
        traces.append(open_trace(path, folder, large))
    return traces


def _analyze(run: TracedRun, traces: Sequence[Trace], step_range: str | None) -> Traced:
    """Return what the traces of a run show.

    Raises `UserError` if a trace holds no kernels, the ranges `step_range` are not in every rank, or the traces
    contradict what the table states about the run.
    """
    found_steps = find_steps(traces, step_range)
    traces_with_kernels = {number for number, _ in found_steps.devices}
    for number, path in enumerate(run.files):
        if number not in traces_with_kernels:
            raise UserError(f"{run.where}: {path.name}: holds no kernel of a GPU, expected activity of a GPU")
    gpus = _gpus_at_work(traces, found_steps)
    devices = run.parameters.get("devices", 1)
    if gpus > devices:
        raise UserError(f"{run.where}: its traces show {gpus} GPUs at work, and devices is {devices}")
    if step_range and found_steps.source is None:
        frequent = ", ".join(found_steps.ranges[:5]) or "none"
        raise UserError(f"{run.where}: found no range {step_range!r} in every rank; the most frequent are: {frequent}")
    ranks = _ranks(run, traces, found_steps)
    return Traced(
        run=run,
        source=found_steps.source,
        ranks=ranks,
        steps=_common_steps(run, found_steps, ranks),
        devices=gpus,
    )


def _gpus_at_work(traces: Sequence[Trace], found_steps: FoundSteps) -> int:
    """Return the number of GPUs that ran kernels.

    A GPU that several processes share counts once if the traces identify it. If not, it counts once for each process.
    """
    gpus: set[object] = set()
    for (number, process), devices in found_steps.devices.items():
        for device in devices:
            identity = None if device is None else traces[number].gpu_identities.get((process, device))
            gpus.add(identity or (number, process, device))
    return len(gpus)


def _ranks(run: TracedRun, traces: Sequence[Trace], found_steps: FoundSteps) -> dict[Owner, int]:
    """Return the ranks of the processes that ran kernels.

    These are the ranks that the traces state. If any process has no stated rank, all processes are numbered from 0
    instead, in the order of file, first device and process id.

    Raises `UserError` if two processes have the same rank, or the highest rank is too high: ranks count from 0, up to
    the stated number of devices or to the number of processes, whichever is more.
    """

    def position(owner: Owner) -> tuple[Any, ...]:
        number, process = owner
        first_device = str(found_steps.devices[owner][0])
        return number, natural(first_device), process

    owners = sorted(found_steps.devices, key=position)
    ranks: dict[Owner, int] = {}
    for number, process in owners:
        rank = traces[number].ranks.get(process)
        if rank is not None:
            ranks[number, process] = rank
    if len(ranks) < len(owners):
        ranks = {owner: rank for rank, owner in enumerate(owners)}
    all_ranks = list(ranks.values())
    for rank in all_ranks:
        if all_ranks.count(rank) > 1:
            raise UserError(f"{run.where}: two of its traces are of rank {rank}, expected those of one run")
    highest = max(all_ranks)
    devices = run.parameters.get("devices", 1)
    # Ranks may share GPUs, so there may be more processes than devices.
    if highest >= max(devices, len(owners)):
        raise UserError(f"{run.where}: holds a trace of rank {highest}, and devices is {devices}")
    return ranks


def _common_steps(run: TracedRun, found_steps: FoundSteps, ranks: dict[Owner, int]) -> dict[Owner, Steps]:
    """Return equally many steps of each rank: those after the stated warm-up, up to the number that all ranks have.

    The result is empty if nothing shows steps.

    Raises `UserError` if the numbers of steps of two ranks differ by more than `MOST_APART`, or a rank has no step
    after the warm-up.
    """
    counts = {ranks[owner]: len(steps.starts) for owner, steps in found_steps.steps.items()}
    if not counts:
        return {}
    shortest_rank = min(counts, key=counts.__getitem__)
    longest_rank = max(counts, key=counts.__getitem__)
    fewest, most = counts[shortest_rank], counts[longest_rank]
    if most > fewest + MOST_APART:
        raise UserError(
            f"{run.where}: ranks of unequal numbers of steps: {fewest} of rank {shortest_rank}, "
            f"{most} of rank {longest_rank}"
        )
    warmup = run.warmup_steps
    if fewest <= warmup:
        raise UserError(f"{run.where}: warmup_steps: found {warmup}, and the traces show {fewest} steps")
    common = slice(warmup, fewest)
    return {
        owner: Steps(steps.starts[common], steps.ends[common], threads=steps.threads[common])
        for owner, steps in found_steps.steps.items()
    }


def _write_run(traced: Traced, recorded: Sequence[Trace], folder: Path) -> None:
    """Write a run directory like that of a job; what the traces do not show is empty."""
    run = traced.run
    profiler = run.profiler.name
    traces = with_steps(recorded, traced.steps)
    _name_ranks(traces, traced.ranks)
    activity = activity_tables(traces, scope=IN_STEPS)
    traced.notices = activity.notices
    missing = "it was adopted; multicard analyze --as-runs reads its traces again"
    Captured(profiler, missing).write(folder / TRACE)
    write_tables(activity, folder, profiler)
    write_csv(folder / STEPS, STEP_COLUMNS, _step_rows(traced, RunFiles(folder)))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, ())
    write_json(folder / RUN, _record(traced, traces, folder).as_json())
    # The pipeline would make an index that is older than the record again, so the index has to be the newer file.
    (folder / ACTIVITY / ACTIVITY_INDEX).touch()


def _name_ranks(traces: Sequence[Trace], ranks: dict[Owner, int]) -> None:
    """Set the ranks of the processes of each trace, and make the names of traces distinct."""
    names = [trace.name for trace in traces]
    for number, trace in enumerate(traces):
        trace.ranks = {process: rank for (trace_number, process), rank in ranks.items() if trace_number == number}
        # Traces may have the same name if each rank has a folder of its own.
        if names.count(trace.name) > 1:
            trace.name = f"{trace.name} {number}"


def _record(traced: Traced, traces: Sequence[Trace], folder: Path) -> RunRecord:
    """Return the record of a run; `folder` is its run directory, which must hold its tables already."""
    run = traced.run
    gpus = dict.fromkeys(gpu_name(name) for trace in traces for name in trace.gpus)
    steps_from = traced.source if traced.steps else None
    steps = f"steps from {steps_from}" if steps_from else "without steps"
    return RunRecord(
        run=run.id,
        outcome="completed",
        parameters=parameters_of(run.parameters),
        versions={"GPU": ", ".join(gpus)} if gpus else None,
        ended_at_time_limit=False,
        profiler=ProfilerUse(used=run.profiler.name, why=f"adopted trace, {steps}"),
        files=tuple(ListedFile(**described(folder / name)) for name in (STEPS, EPOCHS)),
        ranks=tuple(RankRecord(rank=rank, pid=process) for (_, process), rank in traced.ranks.items()),
        adopted=AdoptedRecord(
            traces=tuple(AdoptedTrace(**described(path)) for path in run.files),
            samples_per_step=run.samples_per_step,
            warmup_steps=run.warmup_steps,
            steps_from=steps_from,
            steps=traced.count,
            traced_devices=traced.devices,
        ),
    )


def _step_rows(traced: Traced, run: RunFiles) -> list[Row]:
    """Return the rows of steps.csv: the times that the traces show, and the samples that the table states.

    The samples of a step are divided equally between the ranks; they are None if the table does not state them.

    A step lasts until the next step of its rank starts, as in every other number about a trace. For the last step it is
    only known how long its own work lasts, so the last step has no row, unless it is the only one.
    """
    if not traced.steps:
        return []
    samples = traced.run.samples_per_step
    samples_per_rank = None if samples is None else samples / len(traced.ranks)
    steps = run.traced_steps[["rank", "step", "start_s", "duration_s"]].sort_values(["rank", "step"])
    if traced.count > 1:
        until_next = steps.groupby("rank")["start_s"].shift(-1) - steps["start_s"]
        steps = steps.assign(duration_s=until_next)[until_next.notna()]
    common: Row = {"epoch": 1, "window": "measured", "samples": samples_per_rank}
    return [{**row, **common} for row in steps.to_dict("records")]

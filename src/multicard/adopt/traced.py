"""What the traces of one run show: its ranks, its GPUs and its steps; and the run directory that is made of it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.adopt.table import TracedRun
from multicard.analysis.runs.run_files import RunFiles
from multicard.core.errors import TraceError, UserError
from multicard.core.files import described, write_csv, write_json
from multicard.core.layout import (
    ACTIVITY,
    ACTIVITY_INDEX,
    CAPTURED,
    EPOCH_COLUMNS,
    EPOCHS,
    RUN,
    STEP_COLUMNS,
    STEPS,
    TRACE,
)
from multicard.core.text import gpu_name, natural
from multicard.experiment.workload import parameters_of
from multicard.runs.record import AdoptedRecord, AdoptedTrace, ListedFile, ProfilerUse, RankRecord, RunRecord
from multicard.trace.extract import write_tables
from multicard.trace.files import open_trace
from multicard.trace.find_steps import FoundSteps, Owner, find_steps, with_steps
from multicard.trace.model import Steps, Trace
from multicard.trace.tables import STEPS as IN_STEPS
from multicard.trace.tables import activity_tables

MOST_APART = 1  # steps by which the captures of two ranks may differ
MOST_NAMED = 5  # ranges in a message


@dataclass
class Traced:
    """A run and what its traces show."""

    run: TracedRun  # what was stated of it
    source: str | None  # what tells its steps, in words; None where nothing does
    ranks: dict[Owner, int]  # rank of each process with kernels
    steps: dict[Owner, Steps]  # those that count: as many of each rank, without the stated warm-up
    devices: int  # GPUs at work
    notices: tuple[str, ...] = ()  # lines on what its traces lack

    @property
    def count(self) -> int:
        """Number of steps that count, of each rank."""
        return len(next(iter(self.steps.values())).starts) if self.steps else 0


def gather(
    runs: Sequence[TracedRun], made: Path | None, step_range: str | None = None, large: bool = False
) -> tuple[list[Traced], list[str]]:
    """Look into the traces of runs, one run after another; give what they show, and a line per run that cannot be had.

    `made`: folder for the run directories; None to write none. `step_range`: name of the ranges that are steps; by
    default steps are found. `large`: whether gzipped traces may unpack to any size.
    """
    traced, errors = [], []
    for run in runs:
        with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as exported:
            try:
                traces = _opened(run, Path(exported), large)
                found = _look_into(run, traces, step_range)
                if made is not None:
                    _write_run(found, traces, made / run.id)
            except UserError as error:
                where = f"{run.where}: " if isinstance(error, TraceError) else ""
                errors.append(f"{where}{error}")
                continue
            traced.append(found)
    return traced, errors


def _opened(run: TracedRun, scratch: Path, large: bool) -> list[Trace]:
    """The traces of a run, reports exported to `scratch`."""
    traces = []
    for number, path in enumerate(run.files):
        folder = scratch / f"{number}"  # reports of two ranks may share a name
        folder.mkdir(parents=True)
        traces.append(open_trace(path, folder, large))
    return traces


def _look_into(run: TracedRun, traces: Sequence[Trace], step_range: str | None) -> Traced:
    found = find_steps(traces, step_range)
    for number, path in enumerate(run.files):
        if all(of != number for of, _ in found.devices):
            raise UserError(f"{run.where}: {path.name}: holds no kernel of a GPU, expected activity of a GPU")
    at_work = _gpus_at_work(traces, found)
    devices = run.parameters.get("devices", 1)
    if at_work > devices:
        raise UserError(f"{run.where}: its traces show {at_work} GPUs at work, and devices is {devices}")
    if step_range and found.source is None:
        named = ", ".join(found.ranges[:MOST_NAMED]) or "none"
        raise UserError(f"{run.where}: found no range {step_range!r} in every rank; the most frequent are: {named}")
    ranks = _ranks(run, traces, found)
    return Traced(run, found.source, ranks, _common_steps(run, found, ranks), at_work)


def _gpus_at_work(traces: Sequence[Trace], found: FoundSteps) -> int:
    """Return the number of GPUs that ran kernels; processes that share one count it once where the traces tell."""
    gpus = set()
    for (number, process), devices in found.devices.items():
        for device in devices:
            identity = traces[number].gpu_identities.get((process, device))
            gpus.add(identity or (number, process, device))
    return len(gpus)


def _ranks(run: TracedRun, traces: Sequence[Trace], found: FoundSteps) -> dict[Owner, int]:
    """Ranks of the processes: as the traces say, else in the order of files, devices and processes."""
    owners = sorted(found.devices, key=lambda owner: (owner[0], natural(str(found.devices[owner][0])), owner[1]))
    told = {owner: traces[owner[0]].ranks.get(owner[1]) for owner in owners}
    ranks = told if None not in told.values() else {owner: rank for rank, owner in enumerate(owners)}
    twice = next((rank for rank in ranks.values() if list(ranks.values()).count(rank) > 1), None)
    if twice is not None:
        raise UserError(f"{run.where}: two of its traces are of rank {twice}, expected those of one run")
    highest = max(ranks.values())
    devices = run.parameters.get("devices", 1)
    # Ranks may share a GPU.
    if highest >= max(devices, len(owners)):
        raise UserError(f"{run.where}: holds a trace of rank {highest}, and devices is {devices}")
    return ranks


def _common_steps(run: TracedRun, found: FoundSteps, ranks: dict[Owner, int]) -> dict[Owner, Steps]:
    """As many steps of each rank, from the first one on, without the warm-up."""
    counts = {ranks[owner]: len(own.starts) for owner, own in found.steps.items()}
    if not counts:
        return {}
    (few, fewest), (many, most) = (pick(counts.items(), key=lambda each: each[1]) for pick in (min, max))
    if most > fewest + MOST_APART:
        raise UserError(
            f"{run.where}: ranks of unequal numbers of steps: {fewest} of rank {few}, {most} of rank {many}"
        )
    warmup = run.facts["warmup_steps"]
    if fewest <= warmup:
        raise UserError(f"{run.where}: warmup_steps: found {warmup}, and the traces show {fewest} steps")
    part = slice(warmup, fewest)
    return {
        owner: Steps(own.starts[part], own.ends[part], threads=own.threads[part]) for owner, own in found.steps.items()
    }


def _write_run(traced: Traced, recorded: Sequence[Trace], folder: Path) -> None:
    """Write the run directory of a run as a job leaves it; what its traces do not tell is empty."""
    run = traced.run
    profiler = run.profiler.name
    traces = with_steps(recorded, traced.steps)
    names = [trace.name for trace in traces]
    for number, trace in enumerate(traces):
        trace.ranks = {process: rank for (of, process), rank in traced.ranks.items() if of == number}
        if names.count(trace.name) > 1:  # of ranks in folders of their own
            trace.name = f"{trace.name} {number}"
    found = activity_tables(traces, scope=IN_STEPS)
    traced.notices = found.notices
    gone = "it was adopted; multicard analyze --as-runs reads its traces again"
    write_json(folder / TRACE / CAPTURED, {"profiler": profiler, "missing": gone, "files": []})
    write_tables(found, folder, profiler)
    write_csv(folder / STEPS, STEP_COLUMNS, _steps(traced, RunFiles(folder)))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, ())
    gpus = dict.fromkeys(gpu_name(name) for trace in traces for name in trace.gpus)
    steps_from = traced.source if traced.steps else None
    why = f"adopted trace, {f'steps from {steps_from}' if steps_from else 'without steps'}"
    record = RunRecord(
        run=run.id,
        outcome="completed",
        parameters=parameters_of(run.parameters),
        versions={"GPU": ", ".join(gpus)} if gpus else None,
        ended_at_time_limit=False,
        profiler=ProfilerUse(used=profiler, why=why),
        files=tuple(ListedFile(**described(folder / name)) for name in (STEPS, EPOCHS)),
        ranks=tuple(RankRecord(rank=rank, pid=process) for (_, process), rank in traced.ranks.items()),
        adopted=AdoptedRecord(
            traces=tuple(AdoptedTrace(**described(path)) for path in run.files),
            **run.facts,
            steps_from=steps_from,
            steps=traced.count,
            traced_devices=traced.devices,
        ),
    )
    write_json(folder / RUN, record.as_json())
    (folder / ACTIVITY / ACTIVITY_INDEX).touch()  # it is made of the record, by the rules


def _steps(traced: Traced, run: RunFiles) -> list[dict[str, Any]]:
    """Return rows of steps.csv: times as the traces show them, and the stated samples, shared equally by the ranks.

    A step lasts until the next one starts, as in every other number about a trace. How long the last one lasts is
    known for its work only, so it has a row only where it is alone.
    """
    if not traced.steps:
        return []
    stated = traced.run.facts["samples_per_step"]
    samples = None if stated is None else stated / len(traced.ranks)
    shown = run.traced_steps[["rank", "step", "start_s", "duration_s"]].sort_values(["rank", "step"])
    until_next = shown.groupby("rank")["start_s"].shift(-1) - shown["start_s"]
    if traced.count > 1:
        shown = shown.assign(duration_s=until_next)[until_next.notna()]
    return [{**row, "epoch": 1, "window": "measured", "samples": samples} for row in shown.to_dict("records")]

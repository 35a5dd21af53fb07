"""The run directory of a traced run: its record, its steps and its activity tables, as a job leaves them."""

from pathlib import Path
from typing import Any

from multicard.adopt.traced import Traced
from multicard.analysis.runs.run_files import RunFiles
from multicard.core.errors import TraceError, UserError
from multicard.core.files import described, write_csv, write_json
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, FROM_FIRST_RANK, RUN, STEP_COLUMNS, STEPS
from multicard.core.text import gpu_name
from multicard.experiment.workload import parameters_of
from multicard.trace.extract import write_tables
from multicard.trace.find_steps import with_steps
from multicard.trace.tables import STEPS as IN_STEPS
from multicard.trace.tables import activity_tables

UNKNOWN = ("order", "started", "ended", "wall_time_s", "exit_code", "variables", *FROM_FIRST_RANK)


def write_run(traced: Traced, folder: Path) -> None:
    """Write the run directory of a run; what its traces do not tell is empty.

    Raises
    ------
    UserError
        If a trace turns out to be damaged.
    """
    run = traced.run
    profiler = run.profiler.name
    traces = with_steps(traced.traces, traced.steps)
    names = [trace.name for trace in traces]
    for number, trace in enumerate(traces):
        trace.ranks = {process: rank for (of, process), rank in traced.ranks.items() if of == number}
        if names.count(trace.name) > 1:  # of ranks in folders of their own
            trace.name = f"{trace.name} {number}"
    try:
        found = activity_tables(traces, scope=IN_STEPS)
        write_tables(found, folder, profiler)
        traced.notices = found.notices
    except TraceError as error:
        raise UserError(f"{run.where}: {error}") from error
    write_csv(folder / STEPS, STEP_COLUMNS, _steps(traced, RunFiles(folder)))
    write_csv(folder / EPOCHS, EPOCH_COLUMNS, ())
    gpus = dict.fromkeys(gpu_name(name) for trace in traces for name in trace.gpus)
    steps_from = traced.found.source if traced.steps else None
    why = f"adopted trace, {f'steps from {steps_from}' if steps_from else 'without steps'}"
    record: dict[str, Any] = {
        "run": run.id,
        "outcome": "completed",
        "reason": None,
        "parameters": parameters_of(run.parameters).model_dump(),
        **dict.fromkeys(UNKNOWN),
        "versions": {"GPU": ", ".join(gpus)} if gpus else None,
        "ended_at_time_limit": False,
        "profiler": {"used": profiler, "why": why, "caveat": None, "trace_missing": None},
        "files": [described(folder / name) for name in (STEPS, EPOCHS)],
        "command": [],
        "conditions": [],
        "ranks": [{"rank": rank, "pid": process} for (_, process), rank in traced.ranks.items()],
        "adopted": {
            "traces": [described(path) for path, _ in run.files],
            **run.facts,
            "steps_from": steps_from,
            "steps": traced.count,
            "traced_devices": traced.devices,
        },
    }
    write_json(folder / RUN, record)


def _steps(traced: Traced, run: RunFiles) -> list[dict[str, Any]]:
    """Rows of steps.csv: times as the traces show them, and the stated samples, shared equally by the ranks."""
    stated = traced.run.facts["samples_per_step"]
    samples = None if stated is None else stated / len(traced.ranks)
    shown = run.traced_steps[["rank", "step", "start_s", "duration_s"]] if traced.steps else None
    return [
        {**row, "epoch": 1, "window": "measured", "samples": samples}
        for row in ([] if shown is None else shown.sort_values(["rank", "step"]).to_dict("records"))
    ]

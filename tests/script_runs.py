"""Synthetic runs of scripts: every step of a run lasts as long as is said, so that all rates follow by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from multicard.core.files import write_json
from multicard.core.layout import ACTIVITY, EPOCH_COLUMNS, STEP_COLUMNS
from multicard.experiment.load import check
from multicard.experiment.runs import expand_scenario
from multicard.runs.parameters import run_id
from multicard.trace.tables import ACTIVITIES
from multicard.workloads.script.parameters import ScriptParameters

COMMAND = ["train.py", "--batch-size", "{batch_size}", "--amp", "{amp}"]
WARMUP, MEASURED, PROFILED = 2, 20, 4


def configuration(**scenario: Any) -> dict[str, Any]:
    """A scenario of a script on one and two processes, with two of the script's own parameters."""
    base = {
        "question": "What does another process gain our training?",
        "fixed": {"workload": "script", "command": COMMAND, "device": "cpu"},
        "vary": {"devices": [1, 2], "args": {"batch_size": [32, 64], "amp": ["none", "bf16"]}},
        "figures": ["iteration_time", "speedup"],
    }
    return {"scenarios": {"ours": base | scenario}}


def parameters_of_all(config: dict[str, Any]) -> list[ScriptParameters]:
    return [run.parameters for run in expand_scenario(check(config, "mine.yaml", outside=False), "ours")]


def write_run(
    results: Path,
    p: ScriptParameters,
    step_s: float,
    samples: float | None = 32,
    distinct: bool | None = True,
    steps_per_pass: int | None = None,
    phases: dict[str, float] | None = None,
    tokens: float | None = None,
    **changes: Any,
) -> Path:
    """Write a run directory whose ranks all make steps of `step_s` with so many `samples` and `tokens` each."""
    folder = results / "runs" / run_id(p)
    loader = {"kind": "DataLoader", "sampler": "RandomSampler", "distinct": distinct}
    loaders = [] if samples is None else [loader]
    write_json(
        folder / "run.json",
        {
            "run": folder.name, "outcome": "completed", "reason": None, "parameters": p.model_dump(mode="json"),
            "ranks": [{"rank": rank, "pid": 1 + rank, "observed": {"loaders": loaders}} for rank in range(p.ranks)],
            "profiler": {"used": "none", "why": "as configured", "trace_missing": None},
            "steps_per_pass": steps_per_pass, "started": "2026-01-01T00:00:00", "wall_time_s": 60.0, "data": None,
            "model": None, "host": {"name": "synthetic"}, "versions": {"torch": "2.5.0"}, "variables": {},
            "hardware": {"gpus": [], "processor": "synthetic processor", "logical_cpus": 8},
            "script": {"file": "train.py", "sha256": "ab" * 32, "commit": None, "modified": None},
            "command": ["python", "train.py"], **changes,
        },
    )  # fmt: skip
    rows = []
    windows = ["warmup"] * WARMUP + ["measured"] * MEASURED + ["profiled"] * PROFILED
    for rank in range(p.ranks):
        for number, window in enumerate(windows, 1):
            rows.append(
                dict.fromkeys(STEP_COLUMNS)
                | {"rank": rank, "epoch": 1 + (number - 1) // (steps_per_pass or len(windows)), "step": number}
                | {"window": window, "start_s": (number - 1) * step_s, "duration_s": step_s, "samples": samples}
                | {"tokens": tokens}
                | {"peak_memory_bytes": 1_000_000 * (rank + 1)}
                | {f"{name}_s": share * step_s for name, share in (phases or {}).items()}
            )
    pd.DataFrame(rows, columns=STEP_COLUMNS).to_csv(folder / "steps.csv", index=False)
    pd.DataFrame(columns=EPOCH_COLUMNS).to_csv(folder / "epochs.csv", index=False)
    (folder / ACTIVITY).mkdir()
    for name, activity in ACTIVITIES.items():
        pq.write_table(activity.schema.empty_table(), folder / ACTIVITY / f"{name}.parquet")
    absent = {name: {"absent": "no profiler"} for name in ACTIVITIES}
    (folder / ACTIVITY / "tables.json").write_text(json.dumps({"tables": absent}))
    return folder


def speeds(p: ScriptParameters) -> float:
    """Seconds of a step: 1 ms per sample of a rank, half of that in bf16, and 8 ms for two ranks to agree."""
    each = 0.001 * p.args["batch_size"] * (0.5 if p.args["amp"] == "bf16" else 1)
    return each + 0.008 * (p.devices - 1)


def write_all(results: Path, config: dict[str, Any] | None = None, **changes: Any) -> Sequence[Path]:
    """Run directories of all runs of a scenario, by `speeds`."""
    return [
        write_run(results, p, speeds(p), **{"samples": p.args["batch_size"], **changes})
        for p in parameters_of_all(config or configuration())
    ]

"""Synthetic runs of scripts: every step of a run lasts as long as is said, so that all rates follow by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from factories import make_run, write_run
from multicard.config.load import check
from multicard.config.runs import expand_scenario
from multicard.core.files import write_json
from multicard.core.layout import ACTIVITY, EPOCH_COLUMNS, STEP_COLUMNS
from multicard.programs.script.parameters import ScriptParameters
from multicard.trace.tables import ACTIVITIES

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


def write_script_run(
    results: Path,
    parameters: ScriptParameters,
    step_s: float,
    samples: float | None = 32,
    distinct: bool | None = True,
    steps_per_pass: int | None = None,
    phases: Mapping[str, float] | None = None,
    tokens: float | None = None,
    **changes: Any,
) -> Path:
    """Write a run directory whose ranks all make steps of `step_s`, and return it.

    Parameters
    ----------
    samples, tokens
        How many each rank has in a step; None: not recorded.
    distinct
        Whether the ranks have samples of their own; None: not known.
    phases
        Shares of a step by the name of the phase.
    changes
        Fields of the run's record.
    """
    loader = {"kind": "DataLoader", "sampler": "RandomSampler", "distinct": distinct}
    observed = {"loaders": [] if samples is None else [loader]}
    usual = {
        "ranks": [{"rank": rank, "pid": 1 + rank, "observed": observed} for rank in range(parameters.ranks)],
        "profiler": {"used": "none", "why": "as configured"},
        "steps_per_pass": steps_per_pass,
        "started": "2026-01-01T00:00:00",
        "wall_time_s": 60.0,
        "host": {"name": "synthetic"},
        "versions": {"torch": "2.5.0"},
        "variables": {},
        "hardware": {"gpus": [], "processor": "synthetic processor", "logical_cpus": 8},
        "script": {"file": "train.py", "sha256": "ab" * 32},
        "command": ["python", "train.py"],
    }
    folder = write_run(results / "runs", make_run(parameters, **usual | changes))
    measures = {"duration_s": step_s, "samples": samples, "tokens": tokens}
    measures |= {f"{phase}_s": share * step_s for phase, share in (phases or {}).items()}
    steps = _steps(parameters.ranks, steps_per_pass, measures)
    steps.to_csv(folder / "steps.csv", index=False)
    pd.DataFrame(columns=EPOCH_COLUMNS).to_csv(folder / "epochs.csv", index=False)
    _write_no_activity(folder / ACTIVITY)
    return folder


def _steps(ranks: int, steps_per_pass: int | None, measures: Mapping[str, float | None]) -> pd.DataFrame:
    """Return the steps of all ranks, which have the same measures, one right after another."""
    windows = ["warmup"] * WARMUP + ["measured"] * MEASURED + ["profiled"] * PROFILED
    rows = []
    for rank in range(ranks):
        for index, window in enumerate(windows):
            place = {
                "rank": rank,
                "epoch": 1 + index // (steps_per_pass or len(windows)),
                "step": 1 + index,
                "window": window,
                "start_s": index * measures["duration_s"],
            }
            rows.append(place | measures | {"peak_memory_bytes": 1_000_000 * (rank + 1)})
    return pd.DataFrame(rows, columns=STEP_COLUMNS)


def _write_no_activity(folder: Path) -> None:
    """Write activity tables as they are without a profiler."""
    folder.mkdir()
    for name, activity in ACTIVITIES.items():
        pq.write_table(activity.schema.empty_table(), folder / f"{name}.parquet")
    absent = {name: {"absent": "no profiler"} for name in ACTIVITIES}
    write_json(folder / "tables.json", {"tables": absent})


def speeds(p: ScriptParameters) -> float:
    """Seconds of a step: 1 ms per sample of a rank, half of that in bf16, and 8 ms for two ranks to agree."""
    each = 0.001 * p.args["batch_size"] * (0.5 if p.args["amp"] == "bf16" else 1)
    return each + 0.008 * (p.devices - 1)


def write_all(results: Path, config: dict[str, Any] | None = None, **changes: Any) -> Sequence[Path]:
    """Run directories of all runs of a scenario, by `speeds`."""
    return [
        write_script_run(results, p, speeds(p), **{"samples": p.args["batch_size"], **changes})
        for p in parameters_of_all(config or configuration())
    ]

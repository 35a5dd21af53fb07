"""Run directories of two ranks of image work, small enough to work out by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from factories import make_run
from multicard.core.files import write_json
from multicard.core.layout import STEP_COLUMNS
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import Host, ProfilerUse, RankRecord
from multicard.trace.tables import ACTIVITIES

# rank, step, window, start, duration, forward, backward: seconds. Ranks have clocks of their own; there is a second
# between the first two measured steps of rank 0, and half a one between the last two of rank 1.
STEPS = [
    (0, 1, "warmup", 0.0, 9.0, 4.0, 4.0), (1, 1, "warmup", 0.0, 9.0, 4.0, 4.0),
    (0, 2, "measured", 9.0, 1.0, 0.4, 0.58), (1, 2, "measured", 100.0, 2.0, 0.9, 1.06),
    (0, 3, "measured", 11.0, 4.0, 1.5, 2.4), (1, 3, "measured", 102.0, 3.0, 1.2, 1.71),
    (0, 4, "measured", 15.6, 3.0, 1.0, 1.9), (1, 4, "measured", 105.5, 3.0, 1.0, 1.9),
    (0, 5, "profiled", 30.0, 5.0, 2.0, 2.9), (1, 5, "profiled", 120.0, 6.0, 2.0, 3.9),
]  # fmt: skip
ELAPSED = 9.6  # from 9.0 to 18.6 on rank 0; rank 1 took 8.5


def record(folder: Path, strategy: str, trace_seconds: float = 6.0, repeat: int = 1, **changes: Any) -> Path:
    """Write a synthetic run directory of two ranks; `changes` are fields of its record."""
    parameters = VisionParameters(
        strategy=strategy, device="cpu", devices=2, batch_size=30, image_size=224, repeat=repeat
    )
    usual = {
        "ranks": tuple(RankRecord(rank=rank, pid=1 + rank) for rank in (0, 1)),
        "profiler": ProfilerUse(used="kineto"),
        "steps_per_pass": 10,
        "started": "2026-01-01T00:00:00+00:00",
        "wall_time_s": 1.0,
        "host": Host(name="h"),
    }
    write_json(folder / "run.json", make_run(changes.pop("parameters", parameters), **usual | changes).as_json())
    rows = [
        dict.fromkeys(STEP_COLUMNS)
        | {"rank": r, "epoch": 1, "step": s, "window": w, "start_s": t, "duration_s": d, "forward_s": f}
        | {"backward_s": b, "samples": 30, "loss": 1.0, "peak_memory_bytes": 1000 * (r + 1)}
        for r, s, w, t, d, f, b in STEPS
    ]
    pd.DataFrame(rows).to_csv(folder / "steps.csv", index=False)
    epochs = {"epoch": [1, 2], "train_loss": [1, 1], "test_loss": [3, 2], "test_accuracy": [0.5, 0.6]}
    pd.DataFrame(epochs | {"epoch_time_s": [1, 1]}).to_csv(folder / "epochs.csv", index=False)
    traced = pd.DataFrame(
        [("t", 0, 1, 1, "step", 0.0, 5.0), ("t", 1, 2, 1, "step", 0.0, trace_seconds)],
        columns=ACTIVITIES["phases"].schema.names,
    )
    (folder / "activity").mkdir()
    traced.to_parquet(folder / "activity" / "phases.parquet")
    return folder


def change_steps(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_csv(folder / "steps.csv")).to_csv(folder / "steps.csv", index=False)


def with_activity(folder: Path) -> None:
    """Give a run the files of a trace in which nothing is known but that there are phases."""
    for name, activity in ACTIVITIES.items():
        pq.write_table(activity.schema.empty_table(), folder / "activity" / f"{name}.parquet")
    write_json(folder / "activity" / "tables.json", {"tables": {"phases": {"absent": None}}})

"""Runs on two GPUs of known truth, with a trace, as the GPU check judges them."""

from pathlib import Path
from typing import Any

import pandas as pd
from rows import judge

from captures import Process, make_trace
from multicard.config.read_run import read_run
from multicard.config.runs import Run
from multicard.core.files import write_json
from multicard.core.layout import PHASES, STEP_COLUMNS
from multicard.core.trace_manifests import Exported, TraceFile
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.parameters import JobParameters, run_id
from multicard.trace.extract import extract_run
from synthetic import OTHER, PID

GEMM, ALL_REDUCE = "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
# Milliseconds of the host's steps, of kernels with the call that launches each, and of the steps by CUDA events.
HOST = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 34.0)]
STARTS = [1.0, 9.0, 17.0, 25.0]
WORK = [
    work
    for number, start in enumerate(STARTS)
    for work in ((2 * number + 0.5, start, start + 6, GEMM), (2 * number + 0.8, start + 6, start + 8, ALL_REDUCE))
]
DEVICE_MS = [9.0, 8.0, 8.0, 9.0]
METER = {"energy_j": 3.0, "duration_s": 0.1, "reason": None}
CONDITIONS = {"after": {"sm_clock_mhz": 1400.0, "power_limit_w": 100.0}, "clock_reasons": []}
P = VisionParameters(strategy="ddp-ds", devices=2, epochs=1, batch_size=4, profiled_steps=4)


def ranks_with(first: dict[str, Any], second: dict[str, Any], pid: int = OTHER) -> list[dict[str, Any]]:
    """The record's ranks with these meters; the trace has the process of the second one as `OTHER`."""
    own = ((PID, first), (pid, second))
    return [
        {"rank": rank, "pid": pid, "energy": [meter], "gpu_conditions": [CONDITIONS]}
        for rank, (pid, meter) in enumerate(own)
    ]


def judged(
    folder: Path,
    p: JobParameters = P,
    work: dict[int, Any] | None = None,
    marks: dict[int, Any] | None = None,
    longer: float = 1.0,
    meter: dict[str, Any] = METER,
    scenario: str = "",
    **record: Any,
) -> dict[str, Any]:
    """The row of a run on two GPUs with a trace; its parameters set what the record has in other ways."""
    (folder / "trace").mkdir(parents=True)
    pids = (PID, OTHER)
    marks, work = marks or dict.fromkeys(pids, HOST), work or dict.fromkeys(pids, WORK)
    processes = [Process(marks.get(pid, ()), work.get(pid, ())) for pid in pids]
    make_trace(folder / "trace" / "report.sqlite", *processes)
    report = TraceFile.of(folder / "trace" / "report.sqlite")
    Exported("nsys", None, (report,), captured_sha256="").write(folder / "trace")
    facts = {
        "run": run_id(p), "outcome": "completed", "reason": None, "parameters": p.model_dump(), "wall_time_s": 9.0,
        "profiler": {"used": "nsys", "trace_missing": None}, "steps_per_pass": 9, "hardware": {"gpus": []},
        "ranks": ranks_with(meter, meter),
    }  # fmt: skip
    write_json(folder / "run.json", facts | record)
    seconds = [each / 1e3 for each in (8.0, 8.0, *(longer * each for each in DEVICE_MS))]
    windows = ["measured"] * 2 + ["profiled"] * len(DEVICE_MS)
    starts = [sum(seconds[:number]) for number in range(len(seconds))]
    steps = pd.DataFrame({"step": range(1, 7), "window": windows, "start_s": starts, "duration_s": seconds, "epoch": 1})
    steps = steps.assign(**{f"{phase}_s": seconds if phase == "forward" else 0.0 for phase in PHASES})
    steps = steps.assign(samples=4, loss=1.0, peak_memory_bytes=1e9, peak_reserved_bytes=1e9)
    steps = steps.assign(tokens=4, padded_tokens=4) if p.workload == "llm" else steps
    ranks = pd.concat([steps.assign(rank=rank) for rank in range(2)])
    ranks.reindex(columns=STEP_COLUMNS).to_csv(folder / "steps.csv", index=False)
    epoch = {"epoch": 1, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "epoch_time_s": 1.0}
    pd.DataFrame([epoch]).to_csv(folder / "epochs.csv", index=False)
    extract_run(folder, read_run(folder).ranks)
    return judge(Run(run_id(p), p), folder, scenario)

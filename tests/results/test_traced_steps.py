"""Steps of a run by its trace, where the host runs ahead of its device."""

from pathlib import Path

import pandas as pd
import pytest

from captures import Process, make_trace
from factories import make_run
from multicard.config.read_run import read_run
from multicard.core.files import write_json
from multicard.core.layout import PHASES
from multicard.core.trace_manifests import Exported, TraceFile
from multicard.results.measure import trace_to_record
from multicard.results.run_files import RunFiles
from multicard.runs.record import ProfilerUse, RankRecord
from multicard.trace.extract import extract_run
from synthetic import PID

# The host begins a step every 2 ms and waits in the last one; the device needs 8 ms for each, one after another.
HOST = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 34.0)]
KERNELS = [(0.5, 1.0, 9.0, "gemm"), (2.5, 9.0, 17.0, "gemm"), (4.5, 17.0, 25.0, "gemm"), (6.5, 25.0, 33.0, "gemm")]
# What CUDA events record at the steps' starts and ends: 0, 9, 17, 25 and, when the host has waited, 34 ms.
DEVICE_MS = [9.0, 8.0, 8.0, 9.0]


def run(folder: Path, calls: bool = True) -> Path:
    (folder / "trace").mkdir(parents=True)
    make_trace(folder / "trace" / "report.sqlite", Process(HOST, KERNELS), calls=calls)
    report = TraceFile.of(folder / "trace" / "report.sqlite")
    Exported("nsys", None, (report,), captured_sha256="").write(folder / "trace")
    record = make_run(profiler=ProfilerUse(used="nsys"), ranks=(RankRecord(rank=0, pid=PID),))
    write_json(folder / "run.json", record.as_json())
    windows = ["measured", *["profiled"] * len(DEVICE_MS)]
    seconds = [each / 1e3 for each in (8.0, *DEVICE_MS)]
    steps = pd.DataFrame({"rank": 0, "step": range(1, 1 + len(seconds)), "window": windows, "duration_s": seconds})
    steps = steps.assign(**{f"{phase}_s": seconds if phase == "forward" else 0.0 for phase in PHASES})
    steps.to_csv(folder / "steps.csv", index=False)
    extract_run(folder, read_run(folder).ranks)
    return folder


def test_steps_last_as_long_as_the_cuda_events_of_the_record_say(tmp_path: Path) -> None:
    folder = run(tmp_path / "a")
    steps = RunFiles(folder).traced_steps
    assert (steps["duration_s"] * 1e3).tolist() == pytest.approx(DEVICE_MS)
    assert (steps["start_s"] * 1e3).tolist() == pytest.approx([0, 9, 17, 25])
    assert steps["rank"].tolist() == [0] * 4
    assert trace_to_record(RunFiles(folder), pd.read_csv(folder / "steps.csv")) == pytest.approx(1)
    # Without recorded launches steps are those of the host.
    steps = RunFiles(run(tmp_path / "b", calls=False)).traced_steps
    assert (steps["duration_s"] * 1e3).tolist() == pytest.approx([2, 2, 2, 28])

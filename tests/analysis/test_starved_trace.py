"""A job that waits for its loader between steps: real worker processes, a slow data set, PyTorch's profiler."""

import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset

from multicard.analysis.trace_comparison import PERIOD, compare_captures
from multicard.trace.files import open_trace
from multicard.trace.tables import STEPS, activity_tables

STEPS_OF_JOB, BATCH = 10, 4


class Slow(Dataset):
    """Samples that take their time to decode."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return STEPS_OF_JOB * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((8,), float(index))


def traced(path: Path, seconds: float) -> tuple[float, float]:
    """Trace a job; between which limits a stopwatch has the median time from the start of a step to the next one's."""
    model, marks = torch.nn.Linear(8, 8), []
    loader = DataLoader(Slow(seconds), batch_size=BATCH, num_workers=1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for batch in loader:
            before = time.perf_counter()
            with record_function("step"):
                marks.append((before, time.perf_counter()))
                model(batch).sum().backward()
    profiler.export_chrome_trace(str(path))
    least = median(before - after for (_, after), (before, _) in pairwise(marks))
    return least, median(after - before for (before, _), (_, after) in pairwise(marks))


def test_the_pitch_of_a_starved_job_agrees_with_a_stopwatch(tmp_path: Path) -> None:
    paths = tmp_path / "starved.json", tmp_path / "fed.json"
    watched = [traced(path, seconds) for path, seconds in zip(paths, (0.03, 0.003), strict=True)]
    rows, _ = compare_captures(*(activity_tables([open_trace(path)], scope=STEPS) for path in paths))
    [pitch] = [row for row in rows if row["name"] == PERIOD]
    for found, (low, high) in zip((pitch["a_s"], pitch["b_s"]), watched, strict=True):
        assert 0.98 * low <= found <= 1.02 * high
    # The range of a step does not cover the wait, so its duration does not agree.
    [step] = [row for row in rows if (row["table"], row["name"]) == ("phases", "step")]
    assert step["a_s"] < 0.98 * watched[0][0]

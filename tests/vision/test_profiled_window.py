"""The profiled window lies where the loader sets the pace as it does in training."""

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import TINY
from forked_ranks import forked_ranks
from multicard.launch.job import run_job
from multicard.observe.record.profiled_window import place_window
from multicard.programs.vision.parameters import VisionParameters, read_ahead
from multicard.runs.record import ProfiledWindowRecord


@pytest.mark.parametrize(
    ("stated", "batches"),
    [
        ({}, 0),  # the training process loads each batch when it needs it
        ({"num_workers": 4, "prefetch_factor": 3}, 12),
        ({"num_workers": 4, "prefetch_factor": 3, "device": "cuda", "devices": 2, "strategy": "ddp"}, 12),
        ({"num_workers": 4, "prefetch_factor": 3, "device": "cuda", "devices": 2, "strategy": "dp"}, 24),  # one process
        ({"num_workers": 4, "prefetch_factor": 3, "loader": "dali"}, 3),  # one queue, whatever the threads
    ],
)
def test_what_a_loader_reads_ahead(stated: dict[str, Any], batches: int) -> None:
    p = VisionParameters(**TINY | stated)
    assert (read_ahead(p, synthetic=False), read_ahead(p, synthetic=True)) == (batches, 0)


@pytest.mark.parametrize(
    ("ahead", "pass_steps", "warmup", "expected"),
    [
        (0, 100, 0, (1, 2, 10, False)),  # one step in which the loader starts
        (1, 100, 0, (2, 2, 10, False)),  # ten are more than 4
        (8, 64, 0, (16, 16, 32, False)),  # just fits
        (8, 63, 0, (16, 16, 32, True)),
        (8, 64, 20, (80, 16, 32, False)),  # would end in the next pass, so it begins there
        (8, 100, 105, (116, 16, 32, False)),  # would begin when that pass has just begun
        (0, 13, 0, (1, 2, 10, False)),
        (0, 12, 0, (1, 2, 10, True)),
    ],
)
def test_a_window_lies_within_a_pass_that_is_long_enough(
    ahead: int, pass_steps: int, warmup: int, expected: tuple[int, int, int, bool]
) -> None:
    assert place_window(ahead, pass_steps, warmup, profiled=10) == expected


def test_no_window_crosses_a_pass_unless_it_says_so() -> None:
    for ahead, pass_steps, warmup in product((0, 1, 2, 5), range(1, 80), range(0, 90, 7)):
        window = place_window(ahead, pass_steps, warmup, profiled=5)
        begin = window.warmup_steps % pass_steps
        inside = begin + window.settling_steps + window.profiled_steps <= pass_steps
        assert window.crosses_pass or (inside and begin >= max(1, 2 * ahead))
        assert window.warmup_steps >= max(1, warmup)
        if 2 * ahead < pass_steps:
            assert window.warmup_steps >= 2 * ahead
            assert window.profiled_steps >= max(5, 2 * window.settling_steps)
            continue
        # What was read ahead during a pause is used up, or the pass has ended, when the window begins.
        assert begin == 0 or begin + window.settling_steps >= pass_steps or window.settling_steps >= 2 * ahead
        assert window.profiled_steps >= max(5, min(4 * ahead, pass_steps))


@pytest.mark.slow
def test_the_loader_settles_after_recording_has_begun_and_no_step_of_the_trace_shows_it(
    digits: Path, tmp_path: Path
) -> None:
    p = VisionParameters(**TINY | {"num_workers": 2, "prefetch_factor": 1, "profiler": "kineto"})
    with forked_ranks():
        record = run_job(p, digits, tmp_path, time_limit_s=600)
    assert record.profiled_window == ProfiledWindowRecord(
        warmup_steps=4, settling_steps=4, profiled_steps=8, crosses_pass=False
    )
    windows = ["warmup"] * 2 + ["measured"] * 6 + ["warmup"] * 8 + ["profiled"] * 8
    assert pd.read_csv(tmp_path / "steps.csv")["window"].tolist() == windows

    events = json.loads(gzip.decompress((tmp_path / "trace" / "rank0.json.gz").read_bytes()))["traceEvents"]
    ranges = sorted((e["ts"], e["name"]) for e in events if e.get("cat") == "user_annotation")
    named = [name for _, name in ranges]
    phases = ["data", "transfer", "forward", "backward", "optimizer"]
    shown = [name for name in named if name in ("warmup", "step", *phases)]
    assert shown == ["warmup"] * 4 + ["step", *phases] * 8

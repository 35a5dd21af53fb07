"""The parts of a device's time add up to its span."""

from pathlib import Path

import pandas as pd
import pytest

from multicard.analysis.runs.breakdown import device_time, overall
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables
from synthetic import PID, Work, nsys_export, training_trace


def test_parts_add_up_to_the_span(tmp_path: Path) -> None:
    rows = activity_tables([open_trace(nsys_export(tmp_path / "t.sqlite"))], only=["timeline"]).rows["timeline"]
    timeline = pd.DataFrame(rows)
    parts = device_time(timeline)
    assert len(parts) == 3
    assert parts.sum(axis=1).tolist() == pytest.approx(timeline["span_s"].tolist())
    assert parts.min().min() >= 0
    # Idle time of unknown cause counts as other; without kernels no part is known.
    unknown = timeline.assign(idle_host_bound_s=None, idle_collective_s=None, idle_other_s=None)
    assert device_time(unknown)["idle (other)"].tolist() == pytest.approx(timeline["idle_s"].tolist())
    columns = [name for name in timeline if name.endswith("_s") and name not in ("span_s", "memory_s")]
    assert device_time(timeline.assign(**dict.fromkeys(columns))).isna().all(axis=None)


def test_idle_time_of_a_host_that_is_busy_elsewhere_is_a_part_of_its_own(tmp_path: Path) -> None:
    # Two steps of 10 ms, 5 ms of each computing, 20 ms apart; the first is launched at once and the second late.
    work: list[Work] = [(0.0, 0.0, 5.0, "gemm"), (31.0, 32.0, 37.0, "gemm")]
    path = training_trace(tmp_path / "t.sqlite", {PID: [(0.0, 10.0), (30.0, 40.0)]}, {PID: work})
    timeline = activity_tables([open_trace(path)], ["timeline"], scope="steps").table("timeline").to_pandas()
    parts = device_time(overall(timeline)).iloc[0] * 1e3
    # Idle at 5-32 ms: the host is elsewhere between the steps, and launches at 5-10 and 30-32. Nothing follows 37 ms.
    assert parts["idle (host busy elsewhere)"] == pytest.approx(20)
    assert parts["idle (host-bound)"] == pytest.approx(7)
    assert parts["idle (other)"] == pytest.approx(3)
    assert parts.sum() == pytest.approx(40)

"""The parts of a device's time add up to its span."""

from pathlib import Path

import pandas as pd
import pytest

from multicard.analysis.device_time import device_time
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables
from synthetic import nsys_export


@pytest.fixture
def timeline(tmp_path: Path) -> pd.DataFrame:
    rows = activity_tables([open_trace(nsys_export(tmp_path / "t.sqlite"))], only=["timeline"]).rows["timeline"]
    return pd.DataFrame(rows)


def test_parts_add_up_to_the_span(timeline: pd.DataFrame) -> None:
    parts = device_time(timeline)
    assert len(parts) == 3
    assert parts.sum(axis=1).tolist() == pytest.approx(timeline["span_s"].tolist())
    assert parts.min().min() >= 0


def test_idle_time_of_unknown_cause_counts_as_other(timeline: pd.DataFrame) -> None:
    unknown = timeline.assign(idle_host_bound_s=None, idle_collective_s=None, idle_other_s=None)
    assert device_time(unknown)["idle (other)"].tolist() == pytest.approx(timeline["idle_s"].tolist())


def test_without_kernels_no_part_is_known(timeline: pd.DataFrame) -> None:
    columns = [name for name in timeline if name.endswith("_s") and name not in ("span_s", "memory_s")]
    assert device_time(timeline.assign(**dict.fromkeys(columns))).isna().all(axis=None)

"""The picture of a trace's timeline."""

from pathlib import Path

import pytest

from figures.measured import legend
from multicard.figures.timeline import timeline
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables
from synthetic import nsys_export


@pytest.fixture
def rows(tmp_path: Path) -> list[dict]:
    return activity_tables([open_trace(nsys_export(tmp_path / "t$1.sqlite"))], only=["timeline"]).rows["timeline"]


def test_devices_and_steps_are_drawn(rows: list[dict]) -> None:
    figure = timeline(rows)
    shares, steps = figure.axes
    assert shares.get_title(loc="left") + shares.get_title() == "Share of the capture"
    # Parts without time are neither drawn nor in the legend.
    assert legend(figure) == [["compute", "exposed memory operations", "idle (other)"]]
    assert len(shares.patches) == 3 and len(steps.patches) == 2 * 8  # each part, most of no height
    # Steps of 10 ms each.
    assert max(bar.get_y() + bar.get_height() for bar in steps.patches) == pytest.approx(10)


def test_many_steps_share_a_bar(rows: list[dict]) -> None:
    many = [rows[0]] + [rows[1] | {"step": number} for number in range(1, 1001)]
    steps = timeline(many).axes[1]
    assert len(steps.patches) == 59 * 8  # 1000 / 17
    assert "mean of 17" in steps.get_xlabel()

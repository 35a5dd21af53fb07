"""A trace as a notebook asks for it."""

from pathlib import Path

import pytest

import multicard
from adopted_traces import trace as unmarked_trace
from multicard.api.traces import NotRecorded, TraceAnalysis
from multicard.core.errors import UserError
from multicard.trace.tables import ACTIVITIES
from synthetic import kineto_trace, nsys_export


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceAnalysis:
    return multicard.read_trace(nsys_export(tmp_path_factory.mktemp("trace") / "t.sqlite"))


def test_each_table_is_an_attribute_an_entry_and_a_member(trace: TraceAnalysis) -> None:
    assert set(trace.names) | set(trace.absent) == set(ACTIVITIES)
    for name in trace.names:
        assert list(trace[name].columns) == ACTIVITIES[name].schema.names
        assert getattr(trace, name) is trace[name] is trace.tables[name]
        assert name in dir(trace) and name in trace
        assert len(trace.rows(name)) == len(trace[name])


def test_what_was_not_recorded_is_missing_not_zero(trace: TraceAnalysis) -> None:
    assert str(trace.timeline["step"].dtype) == "Int64"
    assert trace.timeline.query("scope == 'capture'")["step"].isna().all()
    assert trace.kernels["std_s"].dtype == float


def test_a_table_without_events_raises_and_says_why(trace: TraceAnalysis) -> None:
    with pytest.raises(NotRecorded, match=r"t\.sqlite: message_sizes: cannot tell: the capture holds no sizes"):
        _ = trace.message_sizes
    assert trace.absent["message_sizes"].startswith("the capture holds no sizes")
    with pytest.raises(AttributeError, match="no attribute 'kernel'"):
        _ = trace.kernel
    with pytest.raises(UserError, match="no table kernel, expected one of "):
        _ = trace["kernel"]


def test_some_tables_only(tmp_path: Path) -> None:
    some = multicard.read_trace(str(nsys_export(tmp_path / "t.sqlite")), tables=["kernels"])
    assert some.names == ["kernels"]
    with pytest.raises(UserError, match="no table timeline, expected one of kernels"):
        some.figure()
    with pytest.raises(UserError, match="no table kernel, expected some of phases"):
        multicard.read_trace(tmp_path / "t.sqlite", tables=["kernel"])


def test_a_figure_is_a_figure_and_pyplot_forgets_it(trace: TraceAnalysis, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert trace.figure().get_axes()
    assert plt.get_fignums() == before
    with pytest.raises(NotRecorded, match="timeline: cannot tell"):
        multicard.read_trace(nsys_export(tmp_path / "t.sqlite", cuda=False)).figure()


def test_two_traces_are_compared(trace: TraceAnalysis, tmp_path: Path) -> None:
    found = trace.compare(multicard.read_trace(kineto_trace(tmp_path / "t.json")))
    assert list(found.columns) == [
        "table", "name", "a_s", "b_s", "difference_s", "ratio", "low", "high", "a_calls", "b_calls",
    ]  # fmt: skip
    assert found.attrs["basis"] in ("per step", "whole capture")
    same = trace.compare(trace)
    assert (same["difference_s"] == 0).all() and len(same) > 3


def test_names_from_a_trace_cannot_break_its_summary(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "<b>t.sqlite")
    html = multicard.read_trace(path)._repr_html_()
    assert "<b>t" not in html and "&lt;b&gt;t" in html
    assert "cannot tell: the capture holds no sizes" in html


def test_steps_that_nobody_marked_are_found_where_that_is_asked_for(tmp_path: Path) -> None:
    # The optimizer's kernels of four iterations of 20 ms; steps last from one update to the next.
    path = unmarked_trace(tmp_path / "a.sqlite", [20.0] * 4)
    assert "no steps found" in multicard.read_trace(path).answer().sentence
    found = multicard.read_trace(path, scope="steps", find_steps=True)
    assert "steps of 20.0 ms: " in found.answer().sentence
    assert [notice for notice in found.notices if notice.startswith("steps from ")]

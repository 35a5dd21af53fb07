"""One step on every rank: which step is drawn, and where its phases lie."""

import re
from pathlib import Path
from typing import Any

import pytest

from factories import make_results, vision_runs
from multicard.report.page import write_report
from multicard.report.results import ScenarioPlan
from multicard.report.step_timeline import step_timeline
from multicard.results.results import Results


def step(at: int, rank: int, number: int, duration_s: float, **changes: Any) -> dict[str, Any]:
    """A step of the run `at`: loading, then the passes, then what is in no phase."""
    row = {"at": at, "rank": rank, "epoch": 1, "step": number, "window": "measured", "start_s": 0.0}
    phases = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5}
    return row | {"duration_s": duration_s} | phases | changes


def made(folder: Path, steps: list[dict[str, Any]]) -> Results:
    """Results of a run on one GPU, which is run 0, and of one on two."""
    rows = vision_runs(100.0, (1.0,)) + vision_runs(190.0, (1.0,), devices=2)
    return make_results(folder, rows, tables={"steps": steps})


def test_the_step_of_median_duration_of_the_slowest_rank_is_shown_of_the_run_with_most_ranks(tmp_path: Path) -> None:
    slowest_s = {11: 1.4, 12: 1.0, 13: 2.0}
    steps = [step(1, rank, number, time if rank else 0.95) for number, time in slowest_s.items() for rank in (0, 1)]
    steps += [step(0, 0, number, 5.0) for number in range(11, 20)]
    steps += [step(1, 0, 14, 1.3)]  # rank 1 lacks it
    steps += [step(1, rank, 1, 1.2, window="warmup") for rank in (0, 1)]
    timeline = step_timeline(made(tmp_path, steps))
    assert timeline is not None
    assert (timeline.step, timeline.configuration) == (11, "ddp-ds, 2 GPUs") and "cuda2" in timeline.run


def test_phases_follow_one_another_and_the_rest_comes_last(tmp_path: Path) -> None:
    timeline = step_timeline(made(tmp_path, [step(1, 0, 11, 1.15), step(1, 1, 11, 2.0, data_s=None)]))
    assert timeline is not None
    first, second = timeline.ranks
    # Of the longer step, 2 s: 0.1 / 2, 0.3 / 2 and so on.
    assert [(part.phase, part.time) for part in first.segments] == [
        ("data", "100 ms"), ("forward", "300 ms"), ("backward", "500 ms"), ("other", "250 ms"),
    ]  # fmt: skip
    assert [part.start for part in first.segments] == pytest.approx([0, 0.05, 0.2, 0.45])
    assert [part.share for part in first.segments] == pytest.approx([0.05, 0.15, 0.25, 0.125])
    assert [part.phase for part in second.segments] == ["forward", "backward", "other"]  # loading was not recorded
    assert second.segments[-1].share == pytest.approx(1.2 / 2)
    assert timeline.phases == ["data", "forward", "backward", "other"]
    assert [time for _, time in timeline.ticks] == ["0 s", "0.5 s", "1 s", "1.5 s", "2 s"]


def test_phases_that_last_longer_than_their_step_stay_in_the_picture(tmp_path: Path) -> None:
    timeline = step_timeline(made(tmp_path, [step(1, 0, 11, 0.8), step(1, 1, 11, 0.8)]))
    assert timeline is not None
    last = timeline.ranks[0].segments[-1]
    assert (last.phase, last.start + last.share) == ("backward", pytest.approx(1.0))


def test_without_phases_on_several_ranks_there_is_no_picture(tmp_path: Path) -> None:
    none = {"data_s": None, "forward_s": None, "backward_s": None}
    assert step_timeline(made(tmp_path / "one", [step(1, 0, 11, 1.0)])) is None
    unmarked = [step(1, rank, 11, 1.0, **none) for rank in (0, 1)]
    assert step_timeline(made(tmp_path / "unmarked", unmarked)) is None


def test_of_many_ranks_the_first_are_drawn(tmp_path: Path) -> None:
    timeline = step_timeline(made(tmp_path, [step(1, rank, 11, 1.0) for rank in range(20)]))
    assert timeline is not None
    assert (len(timeline.ranks), timeline.omitted_ranks) == (16, 4)


def test_the_page_says_how_to_open_the_trace_where_there_is_one(tmp_path: Path) -> None:
    made(tmp_path, [step(1, rank, 11, 1.0) for rank in (0, 1)])
    page, plans = tmp_path / "report.html", {"s0": ScenarioPlan()}
    write_report(tmp_path, page, plans)
    text = page.read_text(encoding="utf-8")
    assert (
        "<title>Rank 1, forward: 300 ms of 1.00 s</title>" in text and "--perfetto" not in text.partition("<script>")[0]
    )
    [run] = [path for path in (tmp_path / "runs").iterdir() if "cuda2" in path.name]
    (run / "trace").mkdir()
    (run / "trace/rank0.json.gz").write_bytes(b"")
    write_report(tmp_path, page, plans)
    figure = page.read_text(encoding="utf-8").partition('<figure id="timeline-1"')[2].partition("</figure>")[0]
    folder = f"runs/{run.name}/"
    assert re.findall(r'<a href="(runs/.*?)">(\w+)</a>', figure) == [(f"{folder}trace/", "trace"), (folder, "folder")]
    command = re.search(r"<code>(multicard analyze .*?)</code>", page.read_text(encoding="utf-8"))
    assert command and command[1] == f"multicard analyze runs/{run.name}/trace --perfetto step.json.gz"

"""What comes last on the console, with a table where there is one scenario: of synthetic runs."""

import io
import json
import math
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from factories import repeats_of, write_results
from multicard.cli._overview import overview_tables, print_results
from multicard.config.experiment import Experiment
from multicard.core.errors import UserError

ASKED = {"question": "Which is [bold]faster[/bold]?", "fixed": {"device": "cpu"}, "figures": ["step_breakdown"]}

# A run that was made of traces: its parameters, and what its table and its traces showed.
THEIRS = {"workload": "script", "command": ["theirs"], "launcher": "traces", "device": "cuda"}
TRACED = THEIRS | {"traced_devices": 1}


def row(devices: int, seconds: float | None, **others: Any) -> dict[str, Any]:
    """A run of steps so long, with eight images per device."""
    stated = {"workload": "vision", "dataset": "mnist", "strategy": "ddp-ds", "device": "cuda", "devices": devices}
    rate = 8 * devices / seconds if seconds else None
    return stated | {"iteration_time_s": seconds, "throughput_samples_per_s": rate} | others


def results_of(experiment: Experiment) -> str:
    """What is printed of it."""
    with redirect_stdout(io.StringIO()) as out:
        print_results(experiment, Path("mine.yaml"))
    return out.getvalue()


def shown(folder: Path, *scenarios: str, **stated: Any) -> str:
    asked = dict.fromkeys(scenarios or ["s0"], ASKED | stated)
    return results_of(Experiment.model_validate({"results": str(folder), "scenarios": asked}))


def printed(folder: Path, *rows: dict[str, Any], **reasons: str) -> str:
    """What is printed, with single spaces; `reasons` by the number of a run."""
    write_results(folder, rows)
    path = folder / "scenarios" / "s0" / "measures.csv"
    measures = pd.read_csv(path).astype({"reason": object})
    for at, reason in reasons.items():
        measures.loc[int(at.removeprefix("run")), "reason"] = reason
    measures.to_csv(path, index=False)
    return re.sub(r"[ │┃]+", " ", shown(folder))


def test_runs_without_a_part_are_told_below_the_table(tmp_path: Path) -> None:
    script = {"workload": "script", "command": ["train.py"], "device": "cpu", "devices": 1}
    rows = [
        script | {"ablate": part, "iteration_time_s": step_s, "throughput_samples_per_s": 8 / step_s}
        for part, step_s in (("none", 0.1), ("loader", 0.04))
    ]
    text = printed(tmp_path, *rows)
    # 100 ms are 2.5 times 40 ms.
    assert "\n1 CPU process: without loading 2.50× (n=1): loading costs 60% of the time\n" in text
    assert f"\nreport: {tmp_path / 'report.html'}\n" in text


def test_a_configuration_has_a_row_with_intervals_where_there_are_repeats(tmp_path: Path) -> None:
    scatter = {1: (0.9, 1.0, 1.1), 2: (1.1, 1.0, 0.9)}
    rows = [one for n in scatter for one in repeats_of(row(n, 0.1, data_share=0.25), scatter[n])]
    text = printed(tmp_path, *rows)
    assert "Which is [bold]faster[/bold]?" in text
    # Geometric means: logarithms scatter by 0.1004, × 4.303 / √3. Of the share the mean, ± 4.303 × 0.025 / √3.
    assert "\n 1 99.7 [77.7, 127.9] 79.7 [62.1, 102.3] 1.00 100" in text
    # The ratios of the blocks are 2 × (11/9, 1, 9/11): a t interval of two degrees of freedom around 2.
    assert "\n 2 99.7 [77.7, 127.9] 159 [124, 205] 2.00 [1.21, 3.29] " in text
    assert "25.0 [18.8, 31.2]" in text and "\nin brackets: the 95% CI over repeats\n" in text
    assert text.splitlines()[-2] == f"report: {tmp_path}/report.html"


def test_several_scenarios_have_no_tables(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 0.1)], [row(2, 0.1)])
    outcomes = pd.DataFrame({"run": ["a"], "outcome": ["not run"], "reason": ["needs 8 GPUs"]})
    outcomes.to_csv(tmp_path / "scenarios" / "s1" / "runs.csv", index=False)
    *caveats, report, following = shown(tmp_path, "s0", "s1").splitlines()
    assert caveats == ["s1: 1 cannot run here: needs 8 GPUs", "s1: Runs without numbers: 1 cannot run here"]
    assert report == f"report: {tmp_path}/report.html"
    assert (
        following == "next, for intervals, set repeats: 3 in mine.yaml (finished runs are kept) and run it again: "
        "multicard run mine.yaml"
    )


def test_answers_of_several_scenarios_come_last_each_below_its_question(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 0.1, disturbance="other processes: 1.5 CPUs")], [row(2, 0.1)], [row(4, 0.1)])
    names = ("s0", "s1", "s2")
    questions = {name: ASKED | {"question": f"What of {name}?"} for name in names}
    experiment = Experiment.model_validate({"results": str(tmp_path), "scenarios": questions})
    with redirect_stdout(io.StringIO()) as out:
        print_results(experiment, Path("mine.yaml"), {"s0": "s0: 80 images/s", "s2": "s2: 320 images/s"})
    *lines, _report, _following = out.getvalue().splitlines()
    # The second scenario has no answer.
    assert lines == [
        "s0: Disturbed: 1 of 1 run (other processes: 1.5 CPUs); stop other processes there, and measure again or with "
        "more repeats",
        "What of s0?",
        "  s0: 80 images/s",
        "What of s2?",
        "  s2: 320 images/s",
    ]


def test_outcomes_are_shown_only_where_a_run_did_not_complete(tmp_path: Path) -> None:
    assert " outcome " not in printed(tmp_path / "all", row(1, 0.1), row(2, 0.1))
    assert " outcome " in printed(tmp_path / "one", row(1, 0.1), row(2, None, outcome="failed"))


@pytest.mark.parametrize("bounds", [("_low", "_high"), ()], ids=["intervals", "single repeats"])
def test_no_number_is_cut_at_any_width(bounds: tuple[str, ...]) -> None:
    values = {"iteration_time_s": 0.0997, "throughput_samples_per_s": 659.3, "speedup": 1.955, "efficiency": 0.977}
    values |= {"data_share": 0.755, "peak_memory_bytes": 711.4e6}
    rows = pd.DataFrame(
        {"devices": [1, 2], "num_workers": [0, 4], "outcome": ["completed", "2 completed, 1 timed out"]}
    )
    for name, value in values.items():
        for end in ("", "_low", "_high"):
            scale = {"": 1.0, "_low": 0.91, "_high": 1.083}[end]
            rows[f"{name}{end}"] = value * scale if not end or end in bounds else math.nan
    rows[["mfu", "mfu_low", "mfu_high"]] = math.nan  # empty throughout, so not shown
    wide = words_in(overview_tables("Q", rows, [*values, "mfu"], 400), 400)
    assert {"97.7", "2", "timed"} <= wide and "MFU" not in wide
    for width in range(60, 240, 7):
        assert words_in(overview_tables("Q", rows, [*values, "mfu"], width), width) == wide, width


def words_in(tables: list[Table], width: int) -> set[str]:
    """Words of tables on a terminal, whose lines are whole."""
    terminal = Console(width=width, file=io.StringIO())
    for table in tables:
        terminal.print(table)
    lines = [line for line in terminal.file.getvalue().splitlines() if line[:1] in tuple("┏┃┡│└")]
    assert all(len(line) <= width and line[-1] in "┓┃┩│┘" for line in lines)
    return {word for line in lines for word in line.split()[1:-1] if word not in "│┃"}


def test_failures_have_their_one_line(tmp_path: Path) -> None:
    rows = [row(1, 0.1), row(2, None, outcome="failed"), row(4, None, outcome="out_of_memory")]
    text = printed(tmp_path, *rows, run1="rank 1: no such file: a\x1b[1m", run2="rank 0: 3 GiB")
    lines = text.splitlines()
    assert {" 2 – – – failed ", " 4 – – – out of memory "} <= set(lines)
    assert {"failed: rank 1: no such file: a�[1m", "out of memory: rank 0: 3 GiB"} <= set(lines)
    outcomes = pd.DataFrame({"run": ["a", "b"], "outcome": ["not run"] * 2, "reason": ["needs 8 GPUs"] * 2})
    outcomes.to_csv(tmp_path / "scenarios" / "s0" / "runs.csv", index=False)
    assert "2 cannot run here: needs 8 GPUs" in shown(tmp_path).splitlines()


def test_where_no_run_completed_or_none_was_measured_that_is_the_answer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="s0: not measured"):
        shown(tmp_path)
    text = printed(tmp_path, row(1, None, outcome="timed_out"), run0="exceeded its time limit")
    assert "timed out: exceeded its time limit" in text


def test_what_to_do_next_comes_last(tmp_path: Path) -> None:
    text = printed(tmp_path / "a", row(1, 0.1), row(2, 0.1), row(4, None, outcome="failed"))
    assert text.splitlines()[-2:] == [
        f"report: {tmp_path}/a/report.html",
        "next, as 1 of 3 runs did not complete, see why in log.txt and run them again: "
        "multicard run mine.yaml --retry-failed",
    ]
    write_results(tmp_path / "b", repeats_of(row(1, 0.1)))
    said = f"next, for the best configuration and what to try: multicard recommend {tmp_path}/b"
    assert shown(tmp_path / "b", repeats=3).splitlines()[-1] == said


def brief(folder: Path, *rows: dict[str, Any]) -> dict[str, str]:
    """The last lines before the report, by what stands before their colon."""
    write_results(folder, rows)
    lines = shown(folder).splitlines()
    end = lines.index(f"report: {folder}/report.html")
    return dict(line.split(": ", 1) for line in lines[end - 4 : end])


# A step of 100 ms on one device, of which 80 ms compute.
PHASES = {"data_s": 0.0, "forward_s": 0.02, "backward_s": 0.05, "optimizer_s": 0.01, "mean_iteration_time_s": 0.1}


def test_how_much_faster_what_grew_and_what_to_try_are_the_last_lines(tmp_path: Path) -> None:
    cpu = {"device": "cpu"} | PHASES
    longer = {"backward_s": 0.25, "iteration_time_s": 0.3, "mean_iteration_time_s": 0.3}
    lines = brief(tmp_path, row(1, 0.1, **cpu), row(2, 0.3, **cpu | longer))
    # Two processes do twice the work in three times the time: 2 / 3 = 0.667, and 1.5 the other way.
    assert lines["how much faster"].startswith("2 CPU processes (weak scaling): 0.667× as fast as 1 (n=1)")
    assert (
        lines["what grew"]
        == "on 2 CPU processes a step takes 3.00× as long as on one (n=1): 200 ms more in the backward pass"
    )
    assert lines["try next"].startswith("1 CPU process: 1.50× as fast as 2 CPU processes (n=1), one repeat, so it may")
    assert "; or on 2 CPU processes: " in lines["try next"]
    assert lines["more"] == f"multicard recommend {tmp_path}"


def test_each_of_these_lines_stands_where_repeats_decide_nothing(tmp_path: Path) -> None:
    scatter = {1: (0.8, 1.0, 1.25), 2: (1.25, 1.0, 0.8)}
    rows = [one for n in scatter for one in repeats_of(row(n, 0.1 * (1 + n / 4), **PHASES), scatter[n])]
    lines = brief(tmp_path / "wide", *rows)
    # Steps of 125 and 150 ms: 2 × 125 / 150 = 1.667 times as fast, 1.2 times as long; the ratios of the blocks are that
    # times (0.64, 1, 1.5625).
    assert lines["how much faster"] == (
        "2 GPUs (weak scaling): too scattered to tell (1.07× to 2.6× measured, n=3), more repeats on an idle machine "
        "would tell"
    )
    # 1.2 times (0.64, 1, 1.5625).
    scattered = "too scattered to tell (0.768× to 1.88× measured, n=3)"
    assert lines["what grew"] == f"not decided: step times on 2 GPUs and on one are {scattered}"
    assert lines["try next"]
    ideal = brief(tmp_path / "ideal", row(1, 0.1, **PHASES), row(2, 0.102, **PHASES))
    assert ideal["what grew"].startswith("little: on 2 GPUs a step takes 1.02× as long as on one (n=1)")


def test_on_one_number_of_devices_the_largest_part_of_the_step_is_told(tmp_path: Path) -> None:
    write_results(tmp_path, [row(1, 0.1, data_share=0.4)])
    text = shown(tmp_path)
    assert "\nwhere the step goes: 1 GPU: mostly compute (60% of the step); " in text
    assert "\ntry next: `raise num_workers` " in text and "how much faster" not in text


def scripts(folder: Path, *names: str) -> Experiment:
    """An experiment with a run of one step per script, and what is left of these runs: none of them saw a loader."""
    rows = [
        {"workload": "script", "command": [str(folder / name)], "device": "cpu", "steps": 1, "iteration_time_s": 0.1}
        for name in names
    ]
    write_results(folder / "results", *([row] for row in rows))
    fixed = [{name: row[name] for name in ("workload", "device", "steps", "command")} for row in rows]
    scenarios = {f"s{at}": ASKED | {"fixed": own} for at, own in enumerate(fixed)}
    return Experiment.model_validate({"results": str(folder / "results"), "scenarios": scenarios})


def test_a_script_that_was_edited_since_it_was_measured_is_told_of(tmp_path: Path) -> None:
    experiment = scripts(tmp_path, "train.py", "other.py")
    for record in sorted(tmp_path.glob("results/runs/*/run.json")):
        name = "train.py" if "_train" in record.parent.name else "other.py"
        (tmp_path / name).write_bytes(b"abc")
        known = json.loads(record.read_text())
        # Of "abc", by FIPS 180-4, Secure Hash Standard.
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        record.write_text(json.dumps(known | {"script": {"file": name, "sha256": sha256}}))

    def told() -> list[str]:
        return [line for line in results_of(experiment).splitlines() if "has changed since" in line]

    assert told() == []
    (tmp_path / "train.py").write_bytes(b"abcd")
    runs = tmp_path / "results" / "runs"
    said = f"train.py has changed since 1 run was measured; delete their folders in {runs} to measure them again"
    assert told() == [said]


def test_why_the_wait_for_data_is_not_known_is_said_of_scripts_and_of_traces(tmp_path: Path) -> None:
    seen = results_of(scripts(tmp_path, "train.py"))
    assert "data wait: no loader of PyTorch's was seen; wrap yours with " in seen
    adopted = TRACED | {"iteration_time_s": 0.1}
    text = printed(tmp_path / "adopted", adopted)
    assert "data wait: not in the traces\n" in text


def test_next_steps_of_adopted_traces_are_those_of_their_table(tmp_path: Path) -> None:
    adopted = TRACED | {"iteration_time_s": 0.1, "steps_per_s": 10.0}
    write_results(tmp_path, [adopted])
    *lines, following = shown(tmp_path, fixed=THEIRS).splitlines()
    add = "add rows with a column repeat to the table of traces"
    command = "multicard analyze --as-runs TABLE --overwrite"
    assert following == f"next, for intervals, {add}, and read it again: {command}"
    assert any(line.endswith("state them with the column samples_per_step of the table of traces") for line in lines)
    # Without steps there is no throughput in steps either.
    write_results(tmp_path / "b", [adopted | {"iteration_time_s": None, "steps_per_s": None}])
    assert "samples_per_step" not in shown(tmp_path / "b", fixed=THEIRS)

"""Text of users and files is harmless where it is shown: on a terminal, in a spreadsheet and on a page."""

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from changed_traces import Rows, change_events
from multicard import read_results, read_trace
from multicard.config.load import check
from multicard.config.runs import expand_scenario
from multicard.core.reasons import Reason, describe_reason
from multicard.core.text import for_csv, from_csv
from multicard.results.tables import read_measures, write_csv
from script_runs import COMMAND, configuration, write_script_run
from synthetic import kineto_trace

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b31m"
FORMULA = "=cmd|'/c calc'!A1"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", FORMULA]
HARMLESS = ["", "gemm", "it's", "'quoted'", "1-2", " =1", "a\nb", "ü", "None"]


@pytest.mark.parametrize("text", [*FORMULAS, *HARMLESS, *(f"'{text}" for text in FORMULAS), "''-x"])
def test_a_cell_of_csv_is_no_formula_and_is_read_back(text: str) -> None:
    assert for_csv(text)[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert from_csv(for_csv(text)) == text
    if text in HARMLESS:
        assert for_csv(text) == text


def test_texts_of_tables_are_read_back_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = [*(text for text in FORMULAS if "\r" not in text), "-x", "'-x"]
    table = pd.DataFrame(
        {"run": texts, "args.mode": ["=a", "+b", -1, "-x", None, "@", "'=", 2], "time_s": range(-4, 4)}
    ).assign(outcome="completed", workload="script")
    write_csv(table, tmp_path / "measures.csv")
    rows = list(csv.reader((tmp_path / "measures.csv").open(newline="")))[1:]
    assert not any(cell[0] in "=+@\t\r" for row in rows for cell in row[:2] if cell)
    assert [row[2] for row in rows] == [str(number) for number in range(-4, 4)]
    again = read_measures(tmp_path / "measures.csv")
    assert again["run"].tolist() == texts
    assert again["args.mode"].tolist() == ["=a", "+b", -1, "-x", None, "@", "'=", 2]
    assert again["time_s"].tolist() == list(range(-4, 4))


def test_names_of_kernels_are_harmless_in_csv_and_whole_in_parquet(tmp_path: Path) -> None:
    name = FORMULA + ESCAPES

    def edit(events: Rows) -> None:
        for event in events:
            if event.get("cat") == "kernel":
                event["name"] = name

    trace = read_trace(change_events(kineto_trace(tmp_path / "t.json"), edit))
    trace.save(tmp_path / "out")
    text = (tmp_path / "out" / "kernels.csv").read_text()
    assert not CONTROL.search(text) and f"'{FORMULA}" in text and f'"{FORMULA}' not in text
    assert pq.read_table(tmp_path / "out" / "kernels.parquet")["kernel"].to_pylist() == [name]
    again = pd.read_csv(tmp_path / "out" / "kernels.csv")
    assert again["total_s"].tolist() == pq.read_table(tmp_path / "out" / "kernels.parquet")["total_s"].to_pylist()


def test_a_reason_is_one_line_that_a_terminal_may_show() -> None:
    for message in (f"RuntimeError: {ESCAPES}\nx", ESCAPES):
        words = describe_reason(Reason("error", rank=0, message=message))
        assert words.isprintable() and "owned" in words


def test_an_error_of_a_command_is_harmless_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / f"{ESCAPES}.yaml"
    ended = subprocess.run(
        [sys.executable, "-m", "multicard", "run", "--dry-run", str(path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1 and "owned" in ended.stderr
    assert not CONTROL.search(ended.stderr)


def test_the_report_holds_no_control_characters_and_its_tables_no_formulas(tmp_path: Path) -> None:
    config: dict[str, Any] = configuration(question=f"Is it {ESCAPES}?", figures=["step_breakdown"])
    config["results"] = str(tmp_path / "results")
    config["scenarios"]["ours"]["vary"]["args"] = {"batch_size": [32], "amp": [FORMULA, "-x"]}
    config["scenarios"]["ours"]["fixed"]["command"] = [*COMMAND, ESCAPES]
    experiment = check(config, "mine.yaml", outside=False)
    failed = Reason("exited", exit_code=1, message=f"={ESCAPES}").record()
    for run in expand_scenario(experiment, "ours"):
        outcome = {} if run.parameters.devices == 1 else {"outcome": "failed", "reason": failed}
        host = {"name": f"n1{ESCAPES}", "system": "Linux"}
        write_script_run(tmp_path / "results", run.parameters, 0.1, host=host, **outcome)
    (tmp_path / "mine.yaml").write_text(pd.Series(config).to_json())
    read = read_results(tmp_path / "results", tmp_path / "mine.yaml")
    read.draw(tmp_path / "drawn")
    page = (tmp_path / "drawn" / "report.html").read_text()
    assert "owned" in page and not CONTROL.search(page)
    assert not CONTROL.search((tmp_path / "drawn" / "recommendations.md").read_text())
    tables = list((tmp_path / "drawn").rglob("*.csv"))
    assert len(tables) > 3
    for path in tables:
        for row in csv.reader(path.open(newline="")):
            formulas = [cell for cell in row if cell.startswith(("=", "+", "@", "\t", "-"))]
            assert all(re.fullmatch(r"-[\d.]+(e-?\d+)?", cell) for cell in formulas), (path, formulas)
    assert set(read.measures["args.amp"]) == {FORMULA, "-x"}

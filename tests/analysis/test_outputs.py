"""Tables say what the measures say, in every format, whatever text they hold."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from multicard.analysis.runs.measures import MEASURES_OF, runs_table
from multicard.analysis.scaling.speedup import add_scaling
from multicard.analysis.table_files import latex, markdown, write_table
from multicard.analysis.tables import measures_table, speedup_table, write_scenario_tables
from multicard.core.layout import WRITTEN_TABLES
from multicard.workloads.vision.parameters import VisionParameters

HOSTILE = r"a|b & 50% $x$ #1 _y_ {z} ~ ^ \input{evil} <script> [1]* `c` żółw µs — 中" + "\n\x1b[31m"


def measures(*rows: dict[str, Any]) -> pd.DataFrame:
    """Synthetic measures of runs, with speed-up: parameters and measures given, the rest defaults or empty."""
    filled = []
    for row in rows:
        given = {name: value for name, value in row.items() if name in VisionParameters.model_fields}
        parameters = VisionParameters.model_validate({"device": "cpu", **given}).model_dump()
        known = {name: value for name, value in row.items() if name not in given}
        empty = dict.fromkeys(MEASURES_OF["vision"])
        filled.append({"run": "r", "outcome": "completed", "reason": None, **parameters, **empty, **known})
    return add_scaling(pd.DataFrame(filled))


def synthetic() -> pd.DataFrame:
    """One strategy on one, two and four devices, three repeats on one and two."""
    rows = [
        {
            "strategy": "ddp-ds", "devices": devices, "repeat": repeat, "iteration_time_s": seconds,
            "throughput_samples_per_s": 64 * devices / seconds, "peak_memory_bytes": 1_500_000_000, "data_share": 0.125,
        }
        for devices, times in ((1, (0.100, 0.104, 0.098)), (2, (0.110, 0.112, 0.111)), (4, (0.130,)))
        for repeat, seconds in enumerate(times, 1)
    ]  # fmt: skip
    return measures(*rows)


def cells(text: str) -> list[list[str]]:
    """Cells of a Markdown table, the headings first."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows if "---" not in row]


def test_a_table_of_measures_has_units_in_its_headings_and_intervals_in_its_cells() -> None:
    table = measures_table(synthetic(), ["iteration_time_s", "peak_memory_bytes", "data_share", "speedup"])
    headings, one, two, four = cells(markdown(table, "Times"))
    assert headings == [
        "strategy", "devices", "repeats", "iteration time (ms)", "peak memory (GB)", "data share (%)", "speed-up"
    ]  # fmt: skip
    assert one[:5] == ["ddp-ds", "1", "3", "101 [93, 108]", "1.50 [1.50, 1.50]"]
    # Two configurations with repeats have each its own scatter: log 0.1006 ± 4.30 × 0.0303 / √3.
    # 2 × 100 / 110, 2 × 104 / 112 and 2 × 98 / 111: logarithms 0.598, 0.619 and 0.569, so 0.595 ± 4.30 × 0.0145.
    assert two[3:] == ["111 [109, 114]", "1.50 [1.50, 1.50]", "12.5 [12.5, 12.5]", "1.81 [1.70, 1.93]"]
    # 4 × 100 / 130, by the one repeat that both have.
    assert four[2:] == ["1", "130", "1.50", "12.5", "3.08"]


def test_units_suit_the_middle_value_of_a_column() -> None:
    table = pd.DataFrame(
        {
            "short_s": [2e-6, 5e-6, 0.1], "long_s": [0.5, 7.0, 90.0], "moved_bytes": [4096, 8192, 100],
            "tokens_per_s": [1234.5, 10.0, 20.0], "efficiency": [0.5, 0.25, 1.0], "unknown_s": [float("nan")] * 3,
        }
    )  # fmt: skip
    headings, first, *_ = cells(markdown(table, "Units"))
    assert headings == ["short (µs)", "long (s)", "moved (kB)", "tokens per second", "efficiency (%)", "unknown (s)"]
    assert first == ["2.00", "0.500", "4.10", "1,234", "50.0", "–"]


def test_rows_are_labelled_by_what_varies_and_not_by_what_a_preset_brings() -> None:
    rows = [
        {"strategy": "ddp-ds", "preset": preset, "image_size": size, "throughput_samples_per_s": 1.0}
        for preset in ("paper", "tuned")
        for size in (32, 64)
    ]
    table = measures_table(measures(*rows), ["throughput_samples_per_s"])
    assert list(table)[:4] == ["image_size", "preset", "devices", "repeats"]
    # Flags are yes or no, and small parameters keep their digits.
    rows = [{"pin_memory": pin, "learning_rate": rate} for pin, rate in ((True, 0.0003), (False, 0.01))]
    _, on, off = cells(markdown(measures_table(measures(*rows), ["iteration_time_s"]), "Pinned"))
    assert (on[:2], off[:2]) == (["0.0003", "yes"], ["0.01", "no"])


def test_the_table_of_speedups_has_scaling_and_baseline() -> None:
    headings, _, two, _ = cells(markdown(speedup_table(synthetic()), "Scaling"))
    cell = dict(zip(headings, two, strict=True))
    assert (cell["scaling"], cell["baseline"]) == ("weak", "ddp-ds, 1 device")
    assert cell["speed-up"].startswith("1.81 [")


def test_a_caption_says_what_brackets_and_errors_are_where_there_are_any() -> None:
    assert "Geometric means of the ratios of repeats, in brackets the 95% CI" in markdown(
        speedup_table(synthetic()), ""
    )
    assert "in brackets the 95% CI" in markdown(measures_table(synthetic(), ["iteration_time_s"]), "Times")
    assert markdown(pd.DataFrame({"a": [1]}), "Plain").splitlines()[0] == "Plain."


def test_csv_has_the_numbers_as_they_are(tmp_path: Path) -> None:
    table = speedup_table(synthetic())
    write_table(table, tmp_path / "speedup", "Scaling", "speedup")
    assert {path.name for path in tmp_path.iterdir()} == {"speedup.csv", "speedup.md", "speedup.tex"}
    again = pd.read_csv(tmp_path / "speedup.csv")
    pd.testing.assert_frame_equal(again, table, check_dtype=False, check_column_type=False)


@pytest.mark.slow
def test_tables_of_several_scenarios_can_stand_in_one_document(tmp_path: Path) -> None:
    for scenario in ("an_other", "an-other"):
        (tmp_path / scenario).mkdir()
        write_scenario_tables(synthetic(), tmp_path / scenario)
    written = {path: path.read_text() for path in tmp_path.glob("*/*.tex")}
    labels = [re.search(r"\\label\{(.*?)\}", text)[1] for text in written.values()]
    assert len(labels) == len(set(labels)) == 4
    assert "tab:an_other-table_speedup" in labels
    for path, text in written.items():
        name = path.parent.name.replace("_", r"\_")
        assert rf"\caption{{Scenario {name}: " in text
    assert (tmp_path / "an-other/table_speedup.md").read_text().startswith("Scenario an-other: speed-up")


def test_captions_and_a_column_mark_synthetic_runs_and_unlike_machines(tmp_path: Path) -> None:
    notes = ["Synthetic: all runs, on no real machine", "2 machines: A & B; C"]
    write_scenario_tables(synthetic(), tmp_path, notes, "all")
    for name in WRITTEN_TABLES:
        caption = (tmp_path / f"{name}.md").read_text().splitlines()[0]
        assert notes[0] in caption and r"2 machines: A \& B; C." in caption
        assert r"2 machines: A \& B; C." in (tmp_path / f"{name}.tex").read_text()
        assert set(pd.read_csv(tmp_path / f"{name}.csv")["synthetic"]) == {"all"}
        assert "synthetic" not in cells((tmp_path / f"{name}.md").read_text())[0]
    write_scenario_tables(synthetic(), tmp_path)
    assert all("synthetic" not in pd.read_csv(tmp_path / f"{name}.csv") for name in WRITTEN_TABLES)


def test_hostile_text_stays_in_its_markdown_cell() -> None:
    text = markdown(pd.DataFrame({"name": [HOSTILE], HOSTILE: [1.5]}), HOSTILE)
    assert [len(row) for row in cells(text)] == [2, 2]
    assert len(text.splitlines()) == 5
    assert not re.search(r"(?<!\\)[<>`$]", text)
    assert "\x1b" not in text


def unescaped(text: str) -> str:
    """LaTeX without its escaped characters and the commands that stand for characters."""
    return re.sub(
        r"\\[&%$#_{}]|\\text(backslash|asciitilde|asciicircum)\{\}|\$(-|<|>|\||\\pm|\\times|\\mu)\$", "", text
    )


def test_hostile_text_stays_in_its_latex_cell() -> None:
    text = latex(pd.DataFrame({"name": [HOSTILE, "[x]"], "value": [1.5, -2.5]}), HOSTILE, "a b_{c}")
    lines = text.splitlines()
    top, middle, bottom = (lines.index(rf"\{rule}rule") for rule in ("top", "mid", "bottom"))
    rows = lines[top + 1 : middle] + lines[middle + 1 : bottom]
    for row in rows:
        assert unescaped(row).count("&") == 1
        assert row.endswith(r" \\")
        assert not re.search(r"[%$#~^]|\\input", unescaped(row))
        assert row.isascii()
    # A bracket after the end of a row would be its option.
    assert rows[-1] == r"{[}x{]} & $-$2.50 \\"
    assert r"\label{tab:a-b_-c-}" in lines
    assert r"zo\l{}w" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(tmp_path: Path) -> None:
    tables = {
        "speedup": speedup_table(synthetic()),
        "hostile": pd.DataFrame({"name": [HOSTILE, "[x]", "*"], HOSTILE: [1.5, -2.5, None]}),
        "empty": speedup_table(add_scaling(runs_table([]))),
    }
    document = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}"]
    for name, table in tables.items():
        write_table(table, tmp_path / name, HOSTILE, name)
        document.append(rf"\input{{{name}}}")
    (tmp_path / "all.tex").write_text("\n".join([*document, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_table_without_rows_has_its_headings() -> None:
    none = add_scaling(runs_table([]))
    for table in (measures_table(none, ["iteration_time_s"]), speedup_table(none)):
        assert table.empty
        [headings] = cells(markdown(table, "Nothing"))
        assert len(headings) >= 4

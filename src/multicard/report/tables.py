"""Tables for readers: of the numbers of a figure, and of all runs; with names in words, suitable units, four digits."""

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from multicard.analysis.runs.notices import notices
from multicard.core.units import ARGS_PREFIX, heading, number, unit_for, units_of
from multicard.experiment.config import is_parameter
from multicard.report.results import Results
from multicard.workloads.llm.techniques import TECHNIQUES

DIGITS = 4
MOST_ROWS = 60  # of a figure's numbers
LABELS = ("series", "configuration")
# Measures in the table of runs, as far as the runs have them.
MEASURES = (
    "devices", "iteration_time_s", "throughput_samples_per_s", "tokens_per_s", "peak_memory_bytes", "mfu", "bound",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of text: headings, which columns are numeric, rows, and the values that all rows share."""

    headings: list[str]
    numeric: list[bool]
    rows: list[list[str]]
    same: list[tuple[str, str]] = field(default_factory=list)
    left_out: int = 0
    intervals: bool = False
    whole: list[str] = field(default_factory=list)  # names of the rows whose first cells are short


def numbers_table(data: pd.DataFrame, most: int = MOST_ROWS) -> Table:
    """Turn the CSV of a figure into a table for a reader.

    Parameters that all rows share are given once, in `same`. A measure with `_low` and `_high` has them in brackets.
    Empty columns are left out.
    """
    ends = {f"{name}_{end}" for name in data for end in ("low", "high") if f"{name}_{end}" in data}
    same, columns = [], []
    for name in data:
        if name in ends or data[name].isna().all():
            continue
        alike = len(data) > 1 and data[name].nunique(dropna=False) == 1
        if alike and ((is_parameter(name) and name not in LABELS) or name in ("outcome", "synthetic")):
            same.append((in_words(name), cell(name, data[name].iloc[0])))
        else:
            columns.append(name)
    shown = data.head(most)
    parts = [_column(shown, name, ends) for name in columns]
    return Table(
        headings=[heading for heading, _, _ in parts],
        numeric=[numeric for _, numeric, _ in parts],
        rows=[list(row) for row in zip(*(texts for _, _, texts in parts), strict=True)],
        same=same,
        left_out=len(data) - len(shown),
        intervals=any(f"{name}_low" in ends for name in columns),
    )


def run_table(results: Results) -> Table:
    """One row per run in the order of the scenarios: where it belongs, its outcome and main measures, what to mind."""
    tables = [each.measures.assign(_scenario=each.name) for each in results.scenarios if len(each.measures)]
    measures = (
        pd.concat(tables, ignore_index=True).drop_duplicates("run").set_index("run") if tables else pd.DataFrame()
    )
    runs = results.runs.set_index("run")
    words = {run: "; ".join(notices(row)) for run, row in measures.iterrows()}
    data = pd.DataFrame({"scenario": runs["scenarios"].map(", ".join), "outcome": runs["outcome"]})
    data = data.join(measures.filter(MEASURES))
    data["wall_time_s"] = pd.to_numeric(runs.get("wall_time_s"), errors="coerce")
    data["notices"] = pd.Series(words, dtype=object).reindex(data.index).replace("", None)
    names = data.index.to_series()
    defaults = _unnamed_values(measures).reindex(names.index).fillna("")
    short = names.groupby(data["scenario"]).transform(_short)
    data.index = (defaults + short).rename("run")
    return replace(numbers_table(data.reset_index(), len(data)), whole=list(names))


def _unnamed_values(measures: pd.DataFrame) -> pd.Series:
    """Words that tell a run from others of its scenario and that its id leaves out, as it does with defaults."""
    words = pd.Series("", measures.index, dtype=object)
    if measures.empty:
        return words
    for _, runs in measures.groupby("_scenario", sort=False):
        for name in runs:
            is_text = is_parameter(name) and runs[name].map(lambda value: isinstance(value, str)).any()
            if not is_text or runs[name].nunique() < 2:
                continue
            for run, value in runs[name].dropna().items():
                if str(value) not in str(run).split("_"):
                    words[run] += f"{value} "
    return words


def _short(names: pd.Series) -> list[str]:
    """Ids of runs without the parts that all have in common.

    >>> _short(pd.Series(["vision_cpu1_fp32_r1", "vision_cpu2_fp32_r1"]))
    ['cpu1', 'cpu2']
    """
    parts = [name.split("_") for name in names]
    common = set.intersection(*map(set, parts))
    return [
        " ".join(part for part in own if part not in common) or name for name, own in zip(names, parts, strict=True)
    ]


def nothing_to_show(data: pd.DataFrame) -> str | None:
    """Why a figure is empty, by its CSV; None if it is not."""
    return str(data["nothing_to_show"].iloc[0]) if list(data) == ["nothing_to_show"] and len(data) else None


def _column(data: pd.DataFrame, name: str, ends: set[str]) -> tuple[str, bool, list[str]]:
    """Heading of a column, whether it is numeric, and its cells."""
    values = data[name]
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if is_parameter(name) or name in LABELS or not numeric:
        return in_words(name), numeric, [cell(name, value) for value in values]
    units = units_of(name)
    factor, unit = (1.0, "") if units is None else unit_for(values, units)
    words = heading(name, unit)

    def shown(value: Any) -> str:
        return number(float(value) * factor, DIGITS) if pd.notna(value) else ""

    texts = [shown(value) for value in values]
    if {f"{name}_low", f"{name}_high"} <= ends:
        bounds = zip(data[f"{name}_low"], data[f"{name}_high"], strict=True)
        brackets = [f" [{shown(low)}, {shown(high)}]" if shown(low) and low != high else "" for low, high in bounds]
        texts = [text + bracket for text, bracket in zip(texts, brackets, strict=True)]
    return words[:1].upper() + words[1:], True, texts


def in_words(name: str) -> str:
    """Turn a name of a column, figure, table or outcome into words, the first with a capital.

    >>> in_words("out_of_memory"), in_words("cuda_api"), in_words("speedup")
    ('Out of memory', 'CUDA API', 'Speed-up')
    """
    words = heading(name)
    return words if name.startswith(ARGS_PREFIX) else words[:1].upper() + words[1:]


def cell(column: str, value: Any) -> str:
    """Show a value of any kind; empty where there is none."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return ""
    if column == "technique":
        return TECHNIQUES[str(value)].label if str(value) in TECHNIQUES else str(value)
    if column == "outcome":
        return str(value).replace("_", " ")
    if isinstance(value, str | bool) or not pd.api.types.is_number(value):
        return str(value)
    # Numbers of parameters are names as well: a seed of 1234 has no comma.
    return f"{value:g}" if is_parameter(column) else number(float(value), DIGITS)

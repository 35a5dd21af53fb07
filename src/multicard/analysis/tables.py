"""Tables of measures, speed-up and fitted scaling models: CSV to compute with, Markdown and LaTeX to read.

CSV has the numbers as they are, with units in the names of columns. The others have them in a unit that suits the
column, with three digits or as many as the interval needs, and the interval in brackets.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from multicard.analysis.scaling import fits, over_repeats, speedups
from multicard.core.files import atomic_write
from multicard.core.layout import WRITTEN_TABLES
from multicard.core.text import for_latex, for_markdown, printable
from multicard.core.units import ONE, UNKNOWN, heading, number_in, number_with_error, unit_for, units_of
from multicard.experiment.vision_parameters import TUNED
from multicard.experiment.workloads import PARAMETERS

INTERVALS = (
    "Medians over repeats, in brackets their range, from six repeats on their 95 % bootstrap interval; one repeat has "
    "none."
)
RATIOS = (
    "Ratios of medians over repeats, in brackets the range of the ratios of single repeats, from four repeats on the "
    "95 % bootstrap interval; one repeat has none."
)
ERRORS = "± is the standard error. Freedom is points less parameters: where it is 0, the law was not tested."

# What would be too wide for a page beside the rest.
ONLY_IN_CSV = ("baseline_repeats", "law", "others", "synthetic")
# Parameters of laws, as their formulas name them; and what is written otherwise than the column.
NAMES = {"one_device_s": "T1", "parallel_share": "p", "serial_share": "s", "communication_s": "c"}

COSTS = ("iteration_time_s", "throughput_samples_per_s", "tokens_per_s", "peak_memory_bytes", "test_accuracy")


def write_scenario_tables(
    measures: pd.DataFrame, folder: Path, notes: Sequence[str] = (), synthetic: str | None = None
) -> None:
    """Write the tables of one scenario's measures, those of `add_scaling`, into `folder`, which has its name.

    Captions and labels name the scenario, so that the tables of several can stand in one document.

    Parameters
    ----------
    measures
        One row per run.
    folder
        Where to write.
    notes
        Lines for the captions about runs that are made up or unlike, as `provenance.notes` gives them.
    synthetic
        Whether `all` or `some` of the runs are made up, which a column of the CSV says; None where none is.
    """
    words = "tokens_per_s" in measures
    costs = [name for name in COSTS if name in measures and not (words and name == "throughput_samples_per_s")]
    for name, table, caption in zip(
        WRITTEN_TABLES,
        (measures_table(measures, costs), speedup_table(measures), scaling_models_table(measures)),
        ("time and memory of a step.", "speed-up over one device.", "laws of scaling, fitted to the speed-up."),
        strict=True,
    ):
        marked = table.assign(synthetic=synthetic) if synthetic else table
        told = [f"Scenario {folder.name}: {caption}", *(f"{note}." for note in notes)]
        write_table(marked, folder / name, " ".join(told), f"{folder.name}-{name}")


def measures_table(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Medians and intervals of `values`, one row per completed configuration, with the parameters that vary."""
    return _of_what_varies(over_repeats(measures, values))


def speedup_table(measures: pd.DataFrame) -> pd.DataFrame:
    """Give `speedups` with the parameters that vary."""
    return _of_what_varies(speedups(measures), also=("scaling",))


def scaling_models_table(measures: pd.DataFrame) -> pd.DataFrame:
    """Fitted laws, one row per series and law, with the parameters that vary.

    Columns: `scaling`, `law`, `formula`, the parameters of the laws with `…_error`, `residual`, `points`,
    `degrees_of_freedom`, as in `scaling_models.Fit`; `reason` where a law was not fitted; `others`, the residuals with
    other terms of communication.
    """
    rows = []
    for parameters, fit in fits(measures):
        row = {**parameters, "law": fit.law.name, "formula": fit.law.formula}
        for name in NAMES:
            row |= {name: fit.parameters.get(name), f"{name}_error": fit.errors.get(name)}
        others = "; ".join(f"{formula}: {residual:.2%}" for formula, residual in fit.others.items())
        row |= {"residual": fit.residual, "points": fit.points, "degrees_of_freedom": fit.degrees_of_freedom}
        rows.append(row | {"reason": fit.reason, "others": others or None})
    numbers = [*(f"{name}{end}" for name in NAMES for end in ("", "_error")), "residual"]
    columns = ["scaling", "law", "formula", *numbers, "points", "degrees_of_freedom", "reason", "others"]
    table = pd.DataFrame(rows, columns=None if rows else columns).astype(dict.fromkeys(numbers, float))
    # What no law here has is left out.
    empty = [name for name in (*NAMES, "reason", "others") if rows and table[name].isna().all()]
    dropped = [name for name in table if name.removesuffix("_error") in empty]
    return _of_what_varies(table.drop(columns=dropped), also=("scaling",))


def write_table(table: pd.DataFrame, stem: Path, caption: str, label: str) -> None:
    """Write a table as `stem`.csv, `stem`.md and `stem`.tex (booktabs), with the label `tab:<label>`.

    Text is escaped, whatever it holds. In LaTeX, letters that plain fonts lack lose their accents.
    """
    with atomic_write(stem.with_name(f"{stem.name}.csv")) as temporary:
        table.to_csv(temporary, index=False)
    for suffix, text in (("md", markdown(table, caption)), ("tex", latex(table, caption, label))):
        with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
            temporary.write_text(text, encoding="utf-8")


def markdown(table: pd.DataFrame, caption: str) -> str:
    """Word a table in Markdown, with its caption before it."""
    headings, rows, numeric = _worded(table)
    lines = [
        for_markdown(_caption(table, caption)),
        "",
        _markdown_row([for_markdown(heading) for heading in headings]),
        _markdown_row(["---:" if number else "---" for number in numeric]),
        *(
            _markdown_row([cell if n else for_markdown(cell) for cell, n in zip(row, numeric, strict=True)])
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """Word a table in LaTeX, as a `table` that `tab:<label>` refers to and that needs the package booktabs."""
    headings, rows, numeric = _worded(table)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering\footnotefactor\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{for_latex(_caption(table, caption))}}}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9_-]+', '-', label)}}}",
        r"\smallskip",
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        _latex_row(headings),
        r"\midrule",
        *map(_latex_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _of_what_varies(table: pd.DataFrame, also: tuple[str, ...] = ()) -> pd.DataFrame:
    """Drop the parameters that all rows share, and those that follow the preset; `devices` stays, and `also`."""
    names = [name for name in PARAMETERS if name in table]
    found = [name for name in names if name not in ("devices", *also) and table[name].nunique(dropna=False) > 1]
    if "preset" in found:
        follows = [n for n in TUNED if n in table and table.groupby("preset")[n].nunique(dropna=False).max() == 1]
        found = [name for name in found if name not in follows]
    ways = [name for name in ("strategy", "technique") if name in table]
    shown = [*(found or ways), *(["devices"] if "devices" in table else []), *also]
    return table[[name for name in shown if name in table] + [name for name in table if name not in {*names, *also}]]


def _worded(table: pd.DataFrame) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headings, rows of cells, and which columns are numbers; bounds and errors go into the cell of their value."""
    headings, columns, numeric = [], [], []
    for name in table:
        base = re.sub(r"_(low|high|error)$", "", name)
        if (base != name and base in table) or name in ONLY_IN_CSV:
            continue
        column = table[name]
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            headings.append(_heading(name, ""))
            columns.append([_word(value) for value in column])
            numeric.append(False)
            continue
        factor, unit = _unit(name, column)
        headings.append(_heading(name, unit))
        columns.append(_cells(table, name, factor))
        numeric.append(True)
    return headings, [list(row) for row in zip(*columns, strict=True)], numeric


def _heading(name: str, unit: str) -> str:
    words = heading(NAMES.get(name, name), unit)
    return printable(words).strip()


def _cells(table: pd.DataFrame, name: str, factor: float) -> list[str]:
    if name in PARAMETERS or (pd.api.types.is_integer_dtype(table[name]) and factor == 1):
        return [UNKNOWN if pd.isna(value) else f"{value:g}" if value % 1 else f"{value:.0f}" for value in table[name]]

    def scaled(end: str) -> list[float]:
        column = table.get(f"{name}{end}", pd.Series(math.nan, table.index))
        return [math.nan if pd.isna(value) else float(value) * factor for value in column]

    if f"{name}_error" in table:
        pairs = zip(scaled(""), scaled("_error"), strict=True)
        return [number_in(v) if pd.isna(e) else number_with_error(v, e) for v, e in pairs]
    return [number_in(*ends) for ends in zip(scaled(""), scaled("_low"), scaled("_high"), strict=True)]


def _unit(name: str, column: pd.Series) -> tuple[float, str]:
    """Give factor and name of the largest unit that the middle value reaches, or of the smallest."""
    known = column.dropna().astype(float).abs()
    known = known[known > 0]
    return unit_for([] if known.empty else [known.median()], units_of(name) or ONE)


def _word(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return UNKNOWN if pd.isna(value) or value == "" else str(value)


def _caption(table: pd.DataFrame, caption: str) -> str:
    ends = {name.rpartition("_")[2] for name in table}
    intervals = RATIOS if "speedup_low" in table else INTERVALS
    notes = [note for end, note in (("low", intervals), ("error", ERRORS)) if end in ends]
    return " ".join([f"{caption.strip().rstrip('.')}.", *notes])


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: list[str]) -> str:
    return " & ".join(map(for_latex, cells)) + r" \\"

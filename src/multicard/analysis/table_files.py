"""Tables for readers in Markdown and LaTeX, beside a CSV to compute with.

CSV has the numbers as they are, with units in the names of columns. The others have them in a unit that suits the
column, with three digits or as many as the interval needs, and the interval in brackets.
"""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd

from multicard.core.files import atomic_write
from multicard.core.text import for_latex, for_markdown
from multicard.core.units import ONE, UNKNOWN, heading, number_in, unit_for, units_of
from multicard.experiment.config import is_parameter

INTERVALS = (
    "Geometric means over repeats (of shares arithmetic ones), in brackets the 95% CI by the scatter of all "
    "configurations; one repeat has none."
)
RATIOS = (
    "Geometric means of the ratios of repeats, in brackets the 95% CI by the scatter of all configurations; one repeat "
    "has none."
)

# Too wide for a page beside the rest.
ONLY_IN_CSV = ("synthetic",)


def write_table(table: pd.DataFrame, stem: Path, caption: str, label: str) -> None:
    """Write a table as `stem`.csv, `stem`.md and `stem`.tex, with the label `tab:<label>`.

    Text is escaped, whatever it is. In LaTeX, letters outside ASCII lose their accents.
    """
    texts = {"csv": table.to_csv(index=False), "md": markdown(table, caption), "tex": latex(table, caption, label)}
    for suffix, text in texts.items():
        with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
            temporary.write_text(text, encoding="utf-8")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, whole or not at all."""
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False)


def markdown(table: pd.DataFrame, caption: str) -> str:
    """Give a table in Markdown, after its caption."""
    cells, numeric = _cells(table), _numeric(table)
    shown = {
        for_markdown(name): column if number else column.map(for_markdown)
        for (name, column), number in zip(cells.items(), numeric, strict=True)
    }
    alignment = ["right" if number else "left" for number in numeric]
    text = pd.DataFrame(shown).to_markdown(index=False, colalign=alignment, disable_numparse=True)
    return f"{for_markdown(_caption(table, caption))}\n\n{text}\n"


def latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """Give a table in LaTeX, which `tab:<label>` refers to."""
    cells = _cells(table).map(for_latex).rename(columns=for_latex)
    small = [{"selector": "footnotesize", "props": ":;"}, {"selector": "setlength", "props": r":{\tabcolsep}{4pt};"}]
    text = (
        cells.style.hide(axis="index")
        .set_table_styles(small)
        .to_latex(
            column_format="".join("r" if number else "l" for number in _numeric(table)),
            hrules=True,
            position_float="centering",
            caption=for_latex(_caption(table, caption)),
            label=f"tab:{re.sub(r'[^A-Za-z0-9_-]+', '-', label)}",
        )
    )
    return f"% needs \\usepackage{{booktabs}}\n{text}"


def _shown(table: pd.DataFrame) -> list[str]:
    """Columns with cells of their own: bounds go into the cells of their values."""
    bases = {name: re.sub(r"_(low|high)$", "", name) for name in table}
    return [n for n in table if n not in ONLY_IN_CSV and (bases[n] == n or bases[n] not in bases)]


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _numeric(table: pd.DataFrame) -> list[bool]:
    return [_is_number(table[name]) for name in _shown(table)]


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text, with headings and cells for a reader."""
    columns = {}
    for name in _shown(table):
        factor, unit = _unit(name, table[name]) if _is_number(table[name]) else (1.0, "")
        texts = _numbers(table, name, factor) if _is_number(table[name]) else [_word(each) for each in table[name]]
        columns[heading(name, unit).strip()] = texts
    return pd.DataFrame(columns, dtype=str)


def _numbers(table: pd.DataFrame, name: str, factor: float) -> list[str]:
    if is_parameter(name) or (pd.api.types.is_integer_dtype(table[name]) and factor == 1):
        return [UNKNOWN if pd.isna(value) else f"{value:g}" if value % 1 else f"{value:.0f}" for value in table[name]]

    def scaled(end: str) -> list[float]:
        column = table.get(f"{name}{end}", pd.Series(math.nan, table.index))
        return [math.nan if pd.isna(value) else float(value) * factor for value in column]

    return [number_in(*ends) for ends in zip(scaled(""), scaled("_low"), scaled("_high"), strict=True)]


def _unit(name: str, column: pd.Series) -> tuple[float, str]:
    """Give factor and symbol of the largest unit that the middle value reaches, or of the smallest."""
    known = column.dropna().astype(float).abs()
    known = known[known > 0]
    return unit_for([] if known.empty else [known.median()], units_of(name) or ONE)


def _word(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return UNKNOWN if pd.isna(value) or value == "" else str(value)


def _caption(table: pd.DataFrame, caption: str) -> str:
    ends = {name.rpartition("_")[2] for name in table}
    note = RATIOS if "speedup" in table else INTERVALS
    return " ".join([f"{caption.strip().rstrip('.')}.", *([note] if "low" in ends else [])])

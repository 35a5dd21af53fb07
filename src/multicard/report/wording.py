"""Columns and numbers for readers: names in words, suitable units, four digits."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.core.units import ARGS_PREFIX, BYTES, heading, number, unit_for, units_of, with_unit
from multicard.experiment.config import is_parameter
from multicard.workloads.llm.technique import TECHNIQUES

DIGITS = 4


@dataclass(frozen=True)
class Measure:
    """How a column of numbers is shown: under which heading, multiplied by what."""

    heading: str
    factor: float = 1.0
    unit: str = ""

    def shown(self, value: Any) -> str:
        """The number with the column's factor, without its unit; empty where there is none."""
        return number(float(value) * self.factor, DIGITS) if is_number(value) else ""


def measure(column: str, values: pd.Series) -> Measure:
    """Choose heading, factor and unit of a column by its name, and by the size of its values.

    >>> measure("iteration_time_s", pd.Series([0.1, 0.2]))
    Measure(heading='Iteration time (ms)', factor=1000.0, unit='ms')
    >>> measure("tokens_per_s", pd.Series([1e4])), measure("data_share", pd.Series([0.5])).heading
    (Measure(heading='Tokens per second', factor=1.0, unit=''), 'Data share (%)')
    """
    units = units_of(column)
    factor, unit = (1.0, "") if units is None else unit_for(_numbers(values), units)
    words = heading(column, unit)
    return Measure(words[:1].upper() + words[1:], factor, unit)


def in_words(name: str) -> str:
    """Turn a name of a column, figure, table or outcome into words, the first with a capital.

    >>> in_words("out_of_memory"), in_words("cuda_api"), in_words("speedup")
    ('Out of memory', 'CUDA API', 'Speed-up')
    """
    words = heading(name)
    if name.startswith(ARGS_PREFIX):
        return words
    return words[:1].upper() + words[1:]


def cell(column: str, value: Any) -> str:
    """Show a value of any kind; empty where there is none."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return ""
    if column == "technique":
        return TECHNIQUES[str(value)].label if str(value) in TECHNIQUES else str(value)
    if column == "outcome":
        return str(value).replace("_", " ")
    if isinstance(value, str) or not is_number(value):
        return str(value)
    # Numbers of parameters are names as well: a seed of 1234 has no comma.
    return f"{value:g}" if is_parameter(column) else number(float(value), DIGITS)


def is_number(value: Any) -> bool:
    """Whether a value counts something: not a word, a truth value or nothing."""
    return not isinstance(value, (str, bool)) and pd.api.types.is_number(value) and pd.notna(value)


def size(count: float) -> str:
    """A number of bytes in the unit that fits."""
    return with_unit(count, BYTES)


def _numbers(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values, errors="coerce")

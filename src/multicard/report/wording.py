"""Columns and numbers as a reader wants them: names in words, units that fit, four digits."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.experiment.workloads import PARAMETERS
from multicard.figures.series import TECHNIQUES
from multicard.figures.style import BYTES, SECONDS, unit_for

# Columns that are shares of one, in per cent for a reader.
PER_CENT = ("_share", "_accuracy", "_overhead", "efficiency", "ratio")

WORDS = {
    "cpu": "CPU", "cuda": "CUDA", "api": "API", "nccl": "NCCL", "lora": "LoRA", "qlora": "QLoRA", "qat": "QAT",
    "dpo": "DPO", "nchw": "NCHW", "nhwc": "NHWC", "dali": "DALI", "ddp": "DDP", "fsdp": "FSDP", "id": "id",
    "speedup": "speed-up", "numa": "NUMA", "llm": "language model", "llms": "language models", "vram": "VRAM",
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """How a column of numbers is shown: under which heading, multiplied by what."""

    heading: str
    factor: float = 1.0
    unit: str = ""

    def shown(self, value: Any) -> str:
        """The number with the column's factor, without its unit; empty where there is none."""
        return number(float(value) * self.factor) if is_number(value) else ""


def measure(column: str, values: pd.Series) -> Measure:
    """Choose heading, factor and unit of a column by its name, and by the size of its values.

    >>> measure("iteration_time_s", pd.Series([0.1, 0.2]))
    Measure(heading='Iteration time (ms)', factor=1000.0, unit='ms')
    >>> measure("tokens_per_s", pd.Series([1e4])), measure("data_share", pd.Series([0.5])).heading
    (Measure(heading='Tokens per second', factor=1.0, unit=''), 'Data share (%)')
    """
    rate = column.endswith("_bytes_per_s")
    if rate or column.endswith("_bytes"):
        factor, unit = unit_for(_numbers(values).abs(), BYTES)
        unit = f"{unit}/s" if rate else unit
        words = column.removesuffix("_per_s").removesuffix("_bytes")
    elif column.endswith("_s") and not column.endswith("_per_s"):
        factor, unit = unit_for(_numbers(values).abs(), SECONDS)
        words = column.removesuffix("_s")
    elif column.endswith("_j"):
        factor, unit, words = 1.0, "J", column.removesuffix("_j")
    elif column.endswith(PER_CENT):
        factor, unit, words = 100.0, "%", column
    else:
        return Measure(in_words(f"{column}econd" if column.endswith("_per_s") else column))
    return Measure(f"{in_words(words)} ({unit})", factor, unit)


def in_words(name: str) -> str:
    """Turn a name of a column, figure, table or outcome into words, the first with a capital.

    >>> in_words("out_of_memory"), in_words("cuda_api"), in_words("speedup")
    ('Out of memory', 'CUDA API', 'Speed-up')
    """
    words = " ".join(WORDS.get(word, word) for word in name.split("_"))
    return words[:1].upper() + words[1:]


def number(value: float) -> str:
    """Show a number with four digits.

    >>> [number(value) for value in (0, 0.1368049, 2557.34, 944195584, 1e-7, 2.0)]
    ['0', '0.1368', '2,557', '944,195,584', '1e-07', '2']
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cell(column: str, value: Any) -> str:
    """Show a value of any kind; empty where there is none."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return ""
    if column == "technique":
        return TECHNIQUES.get(str(value), str(value))
    if column == "outcome":
        return str(value).replace("_", " ")
    if isinstance(value, str) or not is_number(value):
        return str(value)
    # Numbers of parameters are names as well: a seed of 1234 has no comma.
    return f"{value:g}" if column in PARAMETERS else number(float(value))


def is_number(value: Any) -> bool:
    """Whether a value counts something: not a word, a truth value or nothing."""
    return not isinstance(value, (str, bool)) and pd.api.types.is_number(value) and pd.notna(value)


def size(count: float) -> str:
    """A number of bytes in the unit that fits.

    >>> size(25_276_502_016)
    '25.28 GB'
    """
    factor, unit = unit_for([count], BYTES)
    return f"{number(count * factor)} {unit}"


def _numbers(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values, errors="coerce")

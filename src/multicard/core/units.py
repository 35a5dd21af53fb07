"""Numbers as text: which quantity the name of a column states, the unit that suits a value, and how many digits.

Names of columns end in their unit; `UNITS` is the list of these endings. Terminal, tables, figures and report word
numbers and headings by the functions here.
"""

import math
from collections.abc import Iterable
from typing import Any

Units = tuple[tuple[float, str], ...]  # sizes and symbols, the largest first

SECONDS: Units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
MINUTES: Units = ((60.0, "min"), *SECONDS)
BYTES: Units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
OPERATIONS: Units = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))
BYTES_PER_S: Units = tuple((size, f"{unit}/s") for size, unit in BYTES)
OPERATIONS_PER_S: Units = tuple((size, f"{unit}/s") for size, unit in OPERATIONS)
JOULES: Units = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"))
PERCENT: Units = ((0.01, "%"),)
ONE: Units = ((1.0, ""),)

# Units by what the name of a column ends in; a longer ending stands before a shorter one that it ends in.
UNITS: dict[str, Units] = {
    "_bytes_per_s": BYTES_PER_S,
    "_flop_per_s": OPERATIONS_PER_S,
    "_flop_per_step": OPERATIONS,
    "_bytes_per_step": BYTES,
    "_per_s": ONE,  # the heading says what is counted per second
    "_bytes": BYTES,
    "_s": SECONDS,
    "_j": JOULES,
    "_share": PERCENT,
    "_accuracy": PERCENT,
    "_overhead": PERCENT,
    "mfu": PERCENT,
    "hfu": PERCENT,
    "drift": PERCENT,
    "efficiency": PERCENT,
    "residual": PERCENT,
    "prediction_error": PERCENT,
    "ratio": PERCENT,
}
_IS_UNIT_ALONE = ("_bytes_per_s", "_flop_per_s", "_bytes", "_s", "_j")  # endings that a heading leaves out

WORDS = {
    "cpu": "CPU", "cuda": "CUDA", "api": "API", "nccl": "NCCL", "lora": "LoRA", "qlora": "QLoRA", "qat": "QAT",
    "dpo": "DPO", "nchw": "NCHW", "nhwc": "NHWC", "dali": "DALI", "ddp": "DDP", "fsdp": "FSDP", "id": "id",
    "speedup": "speed-up", "numa": "NUMA", "llm": "language model", "llms": "language models", "vram": "VRAM",
    "gpu": "GPU", "flop": "FLOP", "mfu": "MFU", "hfu": "HFU",
}  # fmt: skip
ARGS_PREFIX = "args."  # how the columns of a user's own parameters begin
UNKNOWN = "–"
DIGITS = 3
SAME = 1e-6  # relative width of an interval that is one of rounding
MOST_DECIMALS = 6


def units_of(column: str) -> Units | None:
    """Give the units of a column by its name; None where it counts things, or is no number, or is a user's own."""
    if column.startswith(ARGS_PREFIX):
        return None
    return BYTES if column == "bytes" else next((UNITS[end] for end in UNITS if column.endswith(end)), None)


def unit_for(values: Iterable[Any], units: Units) -> tuple[float, str]:
    """Give factor and symbol of the largest unit that the largest value reaches, of the smallest where none does.

    Without a known value that is the first unit.

    >>> unit_for([0.02, None, 0.3], SECONDS), unit_for([5e8, 2e9], BYTES)
    ((1000.0, 'ms'), (1e-09, 'GB'))
    """
    import numpy as np

    return _unit_of(np.abs(np.nan_to_num(np.asarray(values, dtype=float))).max(initial=0.0), units)


def _unit_of(largest: float, units: Units) -> tuple[float, str]:
    if not largest:
        size, symbol = units[0]
    else:
        reached = [unit for unit in units if largest >= unit[0]]
        size, symbol = reached[0] if reached else units[-1]
    return 1 / size, symbol


def heading(column: str, unit: str = "") -> str:
    """Turn the name of a column into words, with the unit that its values are shown in.

    >>> heading("iteration_time_s", "ms"), heading("tokens_per_s"), heading("data_share", "%"), heading("cuda_api")
    ('iteration time (ms)', 'tokens per second', 'data share (%)', 'CUDA API')
    >>> heading("args.batch_size")
    'batch_size'
    """
    if column.startswith(ARGS_PREFIX):
        return column.removeprefix(ARGS_PREFIX)
    ending = next((end for end in UNITS if column.endswith(end)), "")
    if ending in _IS_UNIT_ALONE:
        column = column.removesuffix(ending)
    elif ending == "_per_s":
        column = f"{column}econd"
    words = " ".join(WORDS.get(word, word) for word in column.split("_"))
    return f"{words} ({unit})" if unit else words


def show(column: str, value: Any) -> str:
    """Format a value of a column, with the unit that suits it; empty where there is none.

    >>> show("mean_s", 0.00213), show("bytes", 4096), show("ratio", 0.5), show("calls", 3), show("tokens_per_s", 2557.3)
    ('2.13 ms', '4.10 kB', '50.0%', '3', '2,557')
    """
    if value is None:
        return ""
    units = units_of(column)
    if units is PERCENT:
        return percent(value, decimals=1)
    if units is not None and units is not ONE:
        return with_unit(value, units)
    return number(value, 4) if isinstance(value, float) else str(value)


def with_unit(value: float, units: Units) -> str:
    """Format a value with three digits, in the largest unit that it reaches.

    >>> with_unit(25_276_502_016, BYTES), with_unit(0.0123, SECONDS), with_unit(0, BYTES), with_unit(12, BYTES)
    ('25.3 GB', '12.3 ms', '0 B', '12 B')
    >>> with_unit(float("nan"), SECONDS), with_unit(float("inf"), BYTES)
    ('–', '–')
    """
    if not math.isfinite(value):
        return UNKNOWN
    if not value:
        return f"0 {next(symbol for size, symbol in units if size == 1)}"
    factor, symbol = _unit_of(abs(value), units)
    scaled = value * factor
    return f"{scaled:.0f} {symbol}" if symbol == "B" else f"{_fixed(scaled, _decimals(scaled))} {symbol}"


def percent(share: float, signed: bool = False, decimals: int | None = None) -> str:
    """Format a share of one in per cent; with one decimal below ten by default.

    >>> percent(0.4321), percent(0.004), percent(0.1, signed=True), percent(0.4321, decimals=1)
    ('43%', '0.4%', '+10%', '43.2%')
    """
    if decimals is None:
        decimals = 0 if abs(share) >= 0.0995 else 1
    return f"{100 * share:{'+' if signed else ''}.{decimals}f}%"


def number(value: float, digits: int = DIGITS) -> str:
    """Format a number with so many digits, or all before the point.

    >>> number(0.98765), number(12345.6), [number(value, 4) for value in (0, 0.1368049, 2557.34, 1e-7, 2.0)]
    ('0.988', '12,346', ['0', '0.1368', '2,557', '1e-07', '2'])
    """
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def in_digits(value: float, low: float | None = None, high: float | None = None) -> tuple[str, str | None, str | None]:
    """Format a number with three digits, or as many more as its interval needs, and the ends of that.

    >>> in_digits(12.345, 11.9, 12.81), in_digits(20.004, 20.001, 20.006), in_digits(12345.6)
    (('12.3', '11.9', '12.8'), ('20.004', '20.001', '20.006'), ('12,346', None, None))
    """
    if not math.isfinite(value):
        return UNKNOWN, None, None
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return _fixed(value, _decimals(value)), None, None
    decimals = _decimals(value, high - low)
    return _fixed(value, decimals), _fixed(low, decimals), _fixed(high, decimals)


def number_in(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format a number as `in_digits` does, with its interval in brackets, for tables whose captions say what it is.

    >>> number_in(12.345, 11.9, 12.81), number_in(0.012345)
    ('12.3 [11.9, 12.8]', '0.0123')
    """
    text, *ends = in_digits(value, low, high)
    return text if ends[0] is None else f"{text} [{ends[0]}, {ends[1]}]"


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else "0"


def _decimals(value: float, width: float = 0.0) -> int:
    """Return decimals for three digits of a value, and for one digit of the width of its interval.

    A narrow interval adds three decimals at most.

    >>> _decimals(12.345), _decimals(20.004, width=0.005), _decimals(12345.6)
    (1, 3, 0)
    """
    of_value = DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    has_width = width > SAME * abs(value)
    of_width = -math.floor(math.log10(width)) if has_width else of_value
    needed = max(of_value, min(of_width, of_value + DIGITS))
    return min(max(0, needed), MOST_DECIMALS)

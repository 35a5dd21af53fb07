"""Show numbers as text: find the unit of a column by its name, choose the size of unit, and the number of digits.

Names of columns end in their unit; `UNITS` lists these endings. The terminal, tables, figures and the report use the
functions here for numbers and headings.
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

# The units of a column, by the ending of its name. The first ending that fits counts, so "_bytes_per_s" stands before
# "_per_s", and that before "_s".
UNITS: dict[str, Units] = {
    "_bytes_per_s": BYTES_PER_S,
    "_flop_per_s": OPERATIONS_PER_S,
    "_flop_per_step": OPERATIONS,
    "_bytes_per_step": BYTES,
    "_per_s": ONE,  # a count per second, such as tokens_per_s; the heading names what is counted
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
# Endings that are left out of a heading, because they state the unit and nothing else.
_IS_UNIT_ALONE = ("_bytes_per_s", "_flop_per_s", "_bytes", "_s", "_j")

WORDS = {
    "cpu": "CPU", "cuda": "CUDA", "api": "API", "nccl": "NCCL", "lora": "LoRA", "qlora": "QLoRA", "qat": "QAT",
    "dpo": "DPO", "nchw": "NCHW", "nhwc": "NHWC", "dali": "DALI", "ddp": "DDP", "fsdp": "FSDP", "id": "id",
    "speedup": "speed-up", "numa": "NUMA", "llm": "language model", "llms": "language models", "vram": "VRAM",
    "gpu": "GPU", "flop": "FLOP", "mfu": "MFU", "hfu": "HFU",
}  # fmt: skip
ARGS_PREFIX = "args."  # beginning of the names of columns that hold a user's own parameters
UNKNOWN = "–"  # shown in place of a number that is not finite
DIGITS = 3  # significant digits of a number by default
SAME = 1e-6  # an interval that is narrower than this, relative to its value, is the result of rounding
MOST_DECIMALS = 6


def units_of(column: str) -> Units | None:
    """Return the units of a column by its name.

    None for a count, for text, and for a user's own parameter, whose unit is not known.
    """
    if column.startswith(ARGS_PREFIX):
        return None
    if column == "bytes":
        return BYTES
    return UNITS.get(_ending(column))


def _ending(column: str) -> str:
    """Return the first key of `UNITS` with which the name of a column ends; "" if there is none."""
    return next((ending for ending in UNITS if column.endswith(ending)), "")


def unit_for(values: Iterable[Any], units: Units) -> tuple[float, str]:
    """Return the factor and the symbol of one unit for all values; a value is multiplied by the factor to be shown.

    It is the largest unit that is not larger than the largest absolute value; the smallest unit if all are larger. If
    no value is known, or all are 0, it is the first of `units`. Values that are None or NaN are ignored.

    >>> unit_for([0.02, None, 0.3], SECONDS), unit_for([5e8, 2e9], BYTES)
    ((1000.0, 'ms'), (1e-09, 'GB'))
    """
    import numpy as np

    numbers = np.nan_to_num(np.asarray(values, dtype=float))
    largest = np.abs(numbers).max(initial=0.0)
    return _unit_of(largest, units)


def _unit_of(largest: float, units: Units) -> tuple[float, str]:
    if not largest:
        size, symbol = units[0]
    else:
        reached = [unit for unit in units if largest >= unit[0]]
        size, symbol = reached[0] if reached else units[-1]
    return 1 / size, symbol


def heading(column: str, unit: str = "") -> str:
    """Return the name of a column in words, with the unit that its values are shown in, if one is given.

    >>> heading("iteration_time_s", "ms"), heading("tokens_per_s"), heading("data_share", "%"), heading("cuda_api")
    ('iteration time (ms)', 'tokens per second', 'data share (%)', 'CUDA API')
    >>> heading("args.batch_size")
    'batch_size'
    """
    if column.startswith(ARGS_PREFIX):
        return column.removeprefix(ARGS_PREFIX)
    ending = _ending(column)
    if ending in _IS_UNIT_ALONE:
        column = column.removesuffix(ending)
    elif ending == "_per_s":
        column = f"{column}econd"
    words = " ".join(WORDS.get(word, word) for word in column.split("_"))
    return f"{words} ({unit})" if unit else words


def show(column: str, value: Any) -> str:
    """Format a value of a column, in the unit that suits its size; "" for None.

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


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(0.034)
    '34.0 ms'
    """
    return with_unit(seconds, SECONDS)


def hours_and_minutes(seconds: float) -> str:
    """Return a time that a person waits, in its two largest units; less than a second counts as one.

    >>> [hours_and_minutes(seconds) for seconds in (0.2, 45.4, 120, 450, 3599.6, 7500, 97200)]
    ['1 s', '45 s', '2 min', '7 min 30 s', '1 h', '2 h 5 min', '1 d 3 h']
    """
    if round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    if round(seconds) < 3600:
        return _in_two_units(round(seconds), 60, "min", "s")
    if round(seconds) < 86400:
        return _in_two_units(round(seconds / 60), 60, "h", "min")
    return _in_two_units(round(seconds / 3600), 24, "d", "h")


def _in_two_units(count: int, size: int, unit: str, smaller_unit: str) -> str:
    """Return a number of smaller units as units of `size` smaller ones, and the rest if there is one."""
    whole, rest = divmod(count, size)
    return f"{whole} {unit} {rest} {smaller_unit}" if rest else f"{whole} {unit}"


def with_unit(value: float, units: Units) -> str:
    """Format a value with three digits, in the largest unit that is not larger than the value. Bytes have no decimals.

    "–" for a value that is not finite.

    >>> with_unit(25_276_502_016, BYTES), with_unit(0.0123, SECONDS), with_unit(0, BYTES), with_unit(12, BYTES)
    ('25.3 GB', '12.3 ms', '0 B', '12 B')
    >>> with_unit(float("nan"), SECONDS), with_unit(float("inf"), BYTES)
    ('–', '–')
    """
    if not math.isfinite(value):
        return UNKNOWN
    if not value:
        base_symbol = next(symbol for size, symbol in units if size == 1)
        return f"0 {base_symbol}"
    factor, symbol = _unit_of(abs(value), units)
    scaled = value * factor
    if symbol == "B":
        return f"{scaled:.0f} B"
    digits = _fixed(scaled, _decimals(scaled))
    return f"{digits} {symbol}"


def percent(share: float, signed: bool = False, decimals: int | None = None) -> str:
    """Format a share, where 1 is the whole, in per cent.

    `decimals`: by default one if fewer than 10% would be shown, else none. `signed`: True to show a plus sign.

    >>> percent(0.4321), percent(0.004), percent(0.1, signed=True), percent(0.4321, decimals=1)
    ('43%', '0.4%', '+10%', '43.2%')
    """
    if decimals is None:
        decimals = 0 if abs(share) >= 0.0995 else 1
    sign = "+" if signed else ""
    return f"{100 * share:{sign}.{decimals}f}%"


def number(value: float, digits: int = DIGITS) -> str:
    """Format a number with so many significant digits; a large number with all digits before its decimal point.

    >>> number(0.98765), number(12345.6), [number(value, 4) for value in (0, 0.1368049, 2557.34, 1e-7, 2.0)]
    ('0.988', '12,346', ['0', '0.1368', '2,557', '1e-07', '2'])
    """
    has_enough_digits = abs(value) >= 10 ** (digits - 1)
    return f"{value:,.0f}" if has_enough_digits else f"{value:.{digits}g}"


def in_digits(value: float, low: float | None = None, high: float | None = None) -> tuple[str, str | None, str | None]:
    """Format a number and the ends of its interval, all with the same number of decimals.

    The number has three digits, or more if the interval is narrow. The ends are None if there is no interval, or if one
    of them is not finite. A number that is not finite is shown as "–".

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
    """Format a number as `in_digits` does, with its interval in brackets. The caption of a table has to explain these.

    >>> number_in(12.345, 11.9, 12.81), number_in(0.012345)
    ('12.3 [11.9, 12.8]', '0.0123')
    """
    text, low_text, high_text = in_digits(value, low, high)
    return text if low_text is None else f"{text} [{low_text}, {high_text}]"


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    is_zero = float(text.replace(",", "")) == 0
    return "0" if is_zero else text.replace("-", "−")


def _decimals(value: float, width: float = 0.0) -> int:
    """Return the number of decimals that shows three digits of a value, and one digit of the width of its interval.

    A narrow interval adds at most three decimals. There are at most `MOST_DECIMALS`. `width`: 0 without an interval.

    >>> _decimals(12.345), _decimals(20.004, width=0.005), _decimals(12345.6), _decimals(99.97)
    (1, 3, 0, 0)
    """
    needed = 0
    if value:
        # The power of ten of the first digit as it is shown: 1 for 12.345, 0 for 1.2, −2 for 0.012, 2 for 99.97.
        rounded = float(f"{value:.{DIGITS}g}")
        magnitude = math.floor(math.log10(abs(rounded)))
        needed = DIGITS - 1 - magnitude
    has_width = width > SAME * abs(value)
    if has_width:
        for_width = -math.floor(math.log10(width))
        needed = max(needed, min(for_width, needed + DIGITS))
    return min(max(0, needed), MOST_DECIMALS)

"""Integers of Arrow columns as NumPy arrays, and rows of them as codes of what they have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from multicard.trace.model import Integers

EMPTY = -(1 << 63) + 1  # stands for an empty cell: no time or identity of a trace is near it
_WIDEST = 1 << 62
_CLOSE = 1 << 12
MOST_NS = 1 << 61  # 73 years; times since 1970 are below it


def integers(column: pa.Array) -> Integers:
    """Give the integers of a column, `EMPTY` for an empty cell.

    Raises
    ------
    pyarrow.ArrowException
        If the column holds something else.
    """
    column = column.cast(pa.int64())
    values = _values(column, np.int64)
    if column.null_count == 0:
        return values
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    there = np.unpackbits(bits, bitorder="little")[column.offset : column.offset + len(column)]
    return np.where(there == 1, values, EMPTY)


def _values(column: pa.Array, kind: type) -> Integers:
    """Give the numbers of an array as they lie; `to_numpy` would first import pandas, which takes its time."""
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)


def refuse_absurd(numbers: Mapping[str, Integers]) -> None:
    """Refuse times of more than `MOST_NS` nanoseconds, whose sums and differences would overflow.

    Raises
    ------
    ValueError
        With the time.
    """
    for name in numbers.keys() & {"start", "end"}:
        low, high = int(numbers[name].min(initial=0)), int(numbers[name].max(initial=0))
        if low < -MOST_NS or high > MOST_NS:
            found = low if low < -MOST_NS else high
            raise ValueError(f"found a time of {found / 1e9:.3g} s, expected at most {MOST_NS / 1e9:.3g} s")


def encode(columns: Sequence[Integers]) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Number the distinct rows of some columns of equal length: the code of each row, and the row of each code.

    An `EMPTY` cell is None in these. A column costs a nanosecond or two a row where its values lie close together, some
    more where they must be hashed; sorting or comparing whole rows would cost a hundred.
    """
    combined = np.zeros(len(columns[0]), np.int64)
    sizes: list[int] = []
    values: list[Callable[[int], Any]] = []
    for column in columns:
        digits, size, value = _digits(column)
        if size * np.prod(sizes, dtype=float) >= _WIDEST:
            return _encode_in_two(columns)
        if size > 1:
            combined *= size
            combined += digits
        sizes.append(size)
        values.append(value)
    codes, known = _hashed(combined)
    distinct = []
    for code in known:
        row = []
        for size, value in zip(reversed(sizes), reversed(values), strict=True):
            code, digit = divmod(code, size)
            row.append(value(digit))
        distinct.append(tuple(reversed(row)))
    return codes, distinct


def _hashed(values: Integers) -> tuple[Integers, list[int]]:
    """Code of each value, and the value of each code."""
    values = np.ascontiguousarray(values, np.int64)
    encoded = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)]).dictionary_encode()
    return _values(encoded.indices, np.int32), _values(encoded.dictionary, np.int64).tolist()


def _digits(column: Integers) -> tuple[Integers, int, Callable[[int], Any]]:
    """Numbers from 0 for the values of a column, how many numbers there may be, and the value of each."""
    low, high = int(column.min(initial=1 << 62)), int(column.max(initial=EMPTY))
    if low > EMPTY and high - low < _CLOSE:
        return column - low, max(1, high - low + 1), lambda digit: low + digit
    codes, known = _hashed(column)
    return codes, max(1, len(known)), lambda digit: None if known[digit] == EMPTY else known[digit]


def _encode_in_two(columns: Sequence[Integers]) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Encode the two halves of many varied columns first, so that their combination fits an integer."""
    middle = len(columns) // 2
    (first, heads), (second, tails) = encode(columns[:middle]), encode(columns[middle:])
    codes, pairs = encode([first, second])
    return codes, [heads[head] + tails[tail] for head, tail in pairs]

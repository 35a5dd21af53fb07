"""Rows of integers as codes of what they have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from multicard.trace.model import Integers

EMPTY = -(1 << 63) + 1  # stands for an empty cell: no time or identity of a trace is near it
_WIDEST = 1 << 62
_CLOSE, _DENSE = 1 << 12, 1 << 16
_FEW, _SAMPLE = 5, 256
MOST_NS = 1 << 61  # 73 years; times since 1970 are below it


def refuse_absurd(numbers: Mapping[str, Integers]) -> None:
    """Raise `ValueError` at times of more than `MOST_NS` nanoseconds, whose sums and differences would overflow."""
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
    codes, first = _numbered(*_combined(columns))
    values = [column[first].astype(object) for column in columns]
    for each in values:
        each[each == EMPTY] = None
    return codes, list(zip(*(each.tolist() for each in values), strict=True))


def _combined(columns: Sequence[Integers]) -> tuple[Integers, int]:
    """One number from 0 for each row, the same for the same rows, and how many there may be."""
    combined, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        digits, size = _digits(column)
        if most * size >= _WIDEST:  # many varied columns: the two halves first
            middle = len(columns) // 2
            return _combined([_numbered(*_combined(half))[0] for half in (columns[:middle], columns[middle:])])
        if size > 1:
            combined *= size
            combined += digits
            most *= size
    return combined, most


def _numbered(values: Integers, most: int) -> tuple[Integers, Integers]:
    """Code of each value below `most`, in the order of their first rows, and these rows."""
    dense = most <= _DENSE
    codes, most = (values, most) if dense else _hashed(values)
    first = np.full(most, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    known = np.flatnonzero(first >= 0)
    if dense:
        known = known[np.argsort(first[known])]
        table = np.empty(most, np.int32)
        table[known] = np.arange(len(known))
        codes = table[codes]
    return codes, first[known]


def _digits(column: Integers) -> tuple[Integers, int]:
    """Numbers from 0 for the values of a column, and how many there may be."""
    low, high = int(column.min(initial=1 << 62)), int(column.max(initial=EMPTY))
    return (column - low, high - low + 1) if 0 <= high - low < _CLOSE else _hashed(column)


def _hashed(values: Integers) -> tuple[Integers, int]:
    """Code of each value in the order of their first rows, and how many there are."""
    if len(set(values[:: len(values) // _SAMPLE + 1].tolist())) <= _FEW and (few := _few(values)):
        return few
    values = np.ascontiguousarray(values, np.int64)
    encoded = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)]).dictionary_encode()
    # As they lie: `to_numpy` would first import pandas, which takes its time.
    return np.frombuffer(encoded.indices.buffers()[1], np.int32, len(values)), len(encoded.dictionary)


def _few(values: Integers) -> tuple[Integers, int] | None:
    """The same by comparing with one value after another, of which each costs a nanosecond; None if there are many."""
    codes, left, found = np.zeros(len(values), np.int32), np.ones(len(values), bool), 0
    while left.any():
        if found == _FEW:
            return None
        own = values == values[left.argmax()]
        codes[own] = found
        left &= ~own
        found += 1
    return codes, found

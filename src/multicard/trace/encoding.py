"""Rows of integers as codes of what they have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from multicard.trace.model import Integers

EMPTY = -(1 << 63) + 1  # stands for an empty cell: no time or identity of a trace is near it
_WIDEST = 1 << 62
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

    An `EMPTY` cell is None in these. Sorting or comparing whole rows would take many times as long.
    """
    combined, most = (
        np.zeros(len(columns[0]), np.int64),
        1,
    )  # one number from 0 for each row, the same for the same rows
    for column in columns:
        digits, size = _numbered(column)
        if most * size >= _WIDEST:
            combined, most = _numbered(combined)
        combined, most = combined * np.int64(size) + digits, most * size
    codes, count = _numbered(combined)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    values = [column[first].astype(object) for column in columns]
    for each in values:
        each[each == EMPTY] = None
    return codes, list(zip(*(each.tolist() for each in values), strict=True))


def _numbered(values: Integers) -> tuple[Integers, int]:
    """Code of each value in the order of their first rows, and how many there are."""
    values = np.ascontiguousarray(values, np.int64)
    encoded = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)]).dictionary_encode()
    # As they lie: `to_numpy` would first import pandas, which takes its time.
    return np.frombuffer(encoded.indices.buffers()[1], np.int32, len(values)), len(encoded.dictionary)

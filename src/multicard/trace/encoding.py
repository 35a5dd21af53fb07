"""Number the distinct rows of integer columns, and refuse times that no capture has."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from multicard.trace.model import Integers

# Stands for an empty cell in an array of integers: no time or identity of a trace is near it.
EMPTY = -(1 << 63) + 1
# 73 years in nanoseconds. Times that count from 1970 are below it.
MOST_NS = 1 << 61

# Numbers that combine several columns stay below this, so that they fit 64 bits.
WIDEST_CODE = 1 << 62
# A column whose values lie this close together is numbered by subtraction, any other by hashing.
CLOSE_VALUES = 1 << 12
# Up to this many possible codes, a table with an entry for each is faster than hashing.
DENSE_CODES = 1 << 16
# A column with so few distinct values, as far as a sample shows, is compared with one value after another.
FEW_VALUES = 5
SAMPLED_VALUES = 256


class _Codes(NamedTuple):
    """A number from 0 to below `bound` for each row; rows have the same number if, and only if, they are equal."""

    numbers: Integers
    bound: int


def refuse_absurd(numbers: Mapping[str, Integers]) -> None:
    """Raise `ValueError` at times of more than `MOST_NS` nanoseconds, whose sums and differences would overflow."""
    for name in numbers.keys() & {"start", "end"}:
        earliest = int(numbers[name].min(initial=0))
        latest = int(numbers[name].max(initial=0))
        for time in (earliest, latest):
            if abs(time) > MOST_NS:
                raise ValueError(f"found a time of {time / 1e9:.3g} s, expected at most {MOST_NS / 1e9:.3g} s")


def encode(columns: Sequence[Integers]) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Return the code of each row of some columns of equal length, and the distinct rows in the order of their codes.

    An `EMPTY` cell is None in the distinct rows. A column costs a nanosecond or two a row where its values lie close
    together, some more where they must be hashed; sorting or comparing whole rows would cost a hundred.

    >>> codes, rows = encode([np.array([7, 8, 7]), np.array([1, EMPTY, 1])])
    >>> codes.tolist(), rows
    ([0, 1, 0], [(7, 1), (8, None)])
    """
    codes, first_rows = _in_order_of_rows(_combined(columns))
    distinct: list[list[Any]] = []
    for column in columns:
        values = column[first_rows].astype(object)
        values[values == EMPTY] = None
        distinct.append(values.tolist())
    return codes, list(zip(*distinct, strict=True))


def _combined(columns: Sequence[Integers]) -> _Codes:
    """Return one number for each row of all columns: the columns are its digits, as in a number of mixed base.

    The second column takes 2 values, so the first one, less its least value, counts in twos:

    >>> combined = _combined([np.array([7, 8, 9]), np.array([0, 1, 0])])
    >>> combined.numbers.tolist(), combined.bound
    ([0, 3, 4], 6)
    """
    combined = np.zeros(len(columns[0]), np.int64)
    bound = 1
    for column in columns:
        digit = _column_codes(column)
        if bound * digit.bound >= WIDEST_CODE:
            # Many varied columns: the distinct rows of each half are numbered first, which takes fewer numbers.
            middle = len(columns) // 2
            first_half, _ = _in_order_of_rows(_combined(columns[:middle]))
            second_half, _ = _in_order_of_rows(_combined(columns[middle:]))
            return _combined([first_half, second_half])
        if digit.bound > 1:
            combined *= digit.bound
            combined += digit.numbers
            bound *= digit.bound
    return _Codes(combined, bound)


def _in_order_of_rows(codes: _Codes) -> tuple[Integers, Integers]:
    """Return codes that count up in the order of the first row of each, without gaps, and these first rows.

    Rows 0 and 2 are the first with the numbers 5 and 3, which become 0 and 1:

    >>> codes, first_rows = _in_order_of_rows(_Codes(np.array([5, 5, 3, 5]), bound=6))
    >>> codes.tolist(), first_rows.tolist()
    ([0, 0, 1, 0], [0, 2])
    """
    is_dense = codes.bound <= DENSE_CODES
    numbers, bound = codes if is_dense else _hashed(codes.numbers)
    # The last of several assignments to one element stays, so the rows are assigned backwards.
    rows_backwards = np.arange(len(numbers))[::-1]
    first_row = np.full(bound, -1)
    first_row[numbers[::-1]] = rows_backwards
    used = np.flatnonzero(first_row >= 0)
    if is_dense:
        used = used[np.argsort(first_row[used])]
        renumbered = np.empty(bound, np.int32)
        renumbered[used] = np.arange(len(used))
        numbers = renumbered[numbers]
    return numbers, first_row[used]


def _column_codes(column: Integers) -> _Codes:
    """Return codes for the values of a column."""
    low = int(column.min(initial=1 << 62))
    high = int(column.max(initial=EMPTY))
    # An empty column has a low above its high.
    if 0 <= high - low < CLOSE_VALUES:
        return _Codes(column - low, high - low + 1)
    return _hashed(column)


def _hashed(values: Integers) -> _Codes:
    """Return codes for values in the order of their first rows, without gaps."""
    step = len(values) // SAMPLED_VALUES + 1
    sampled_values = set(values[::step].tolist())
    if len(sampled_values) <= FEW_VALUES:
        codes = _compared(values)
        if codes is not None:
            return codes
    values = np.ascontiguousarray(values, np.int64)
    no_nulls = None
    encoded = pa.Array.from_buffers(pa.int64(), len(values), [no_nulls, pa.py_buffer(values)]).dictionary_encode()
    # The indices are taken from Arrow's memory: its `to_numpy` would first import pandas, which takes a while.
    _, index_buffer = encoded.indices.buffers()
    indices = np.frombuffer(index_buffer, np.int32, len(values))
    return _Codes(indices, bound=len(encoded.dictionary))


def _compared(values: Integers) -> _Codes | None:
    """Return what `_hashed` does, by a comparison with each distinct value; None if there are more than a few.

    A comparison costs a nanosecond a row.
    """
    numbers = np.zeros(len(values), np.int32)
    is_unnumbered = np.ones(len(values), bool)
    count = 0
    while is_unnumbered.any():
        if count == FEW_VALUES:
            return None
        first_unnumbered = is_unnumbered.argmax()
        has_value = values == values[first_unnumbered]
        numbers[has_value] = count
        is_unnumbered &= ~has_value
        count += 1
    return _Codes(numbers, count)

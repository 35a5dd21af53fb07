"""Number the distinct rows of integer columns, and refuse times that no capture has."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from multicard.trace.model import Integers

# Stands for an empty cell in an array of integers. No time or identifier of a trace is near this number.
EMPTY = -(1 << 63) + 1
# Largest absolute value of a start or an end, in nanoseconds: 73 years. Times that count from 1970 are below it.
MOST_NS = 1 << 61

# Numbers that combine several columns stay below this, so that they fit 64 bits.
WIDEST_CODE = 1 << 62
# If the largest and the smallest value of a column differ by less than this, the column is numbered by subtracting the
# smallest value. Any other column is hashed.
CLOSE_VALUES = 1 << 12
# Up to this many possible codes, a table with an entry for each is faster than hashing.
DENSE_CODES = 1 << 16
# If a sample of at most `SAMPLED_VALUES` rows of a column has at most `FEW_VALUES` distinct values, the whole column is
# compared with one value after another before it is hashed.
FEW_VALUES = 5
SAMPLED_VALUES = 256


class _Codes(NamedTuple):
    """A number from 0 to below `bound` for each row; rows have the same number if, and only if, they are equal."""

    numbers: Integers
    bound: int


def refuse_absurd(numbers: Mapping[str, Integers]) -> None:
    """Raise `ValueError` if the absolute value of any start or end is above `MOST_NS` nanoseconds.

    Sums and differences of such times would overflow. Numbers with other names are not checked.
    """
    for name in numbers.keys() & {"start", "end"}:
        earliest = int(numbers[name].min(initial=0))
        latest = int(numbers[name].max(initial=0))
        for time in (earliest, latest):
            if abs(time) > MOST_NS:
                raise ValueError(f"found a time of {time / 1e9:.3g} s, expected at most {MOST_NS / 1e9:.3g} s")


def encode(columns: Sequence[Integers]) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Return the code of each row of at least one column, and the distinct rows in the order of their codes.

    All columns have equal length. Codes count up from 0 in the order in which distinct rows first occur. An `EMPTY`
    cell is None in the distinct rows.

    A column takes one or two nanoseconds for each row if its values lie close together, and some more if they must be
    hashed. Sorting or comparing whole rows would take a hundred nanoseconds for each row.

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
    """Return one number for each row. The codes of the row's cells are the digits of a number of mixed base.

    The codes of the first column are 0, 1 and 2. The second column takes 2 values, so the base of the first digit is 2.
    The numbers are 0 * 2 + 0, 1 * 2 + 1 and 2 * 2 + 0, all below 3 * 2:

    >>> combined = _combined([np.array([7, 8, 9]), np.array([0, 1, 0])])
    >>> combined.numbers.tolist(), combined.bound
    ([0, 3, 4], 6)
    """
    combined = np.zeros(len(columns[0]), np.int64)
    bound = 1
    for column in columns:
        digit = _column_codes(column)
        if bound * digit.bound >= WIDEST_CODE:
            # The number would not fit 64 bits. So the distinct rows of each half of the columns are numbered first: as
            # their codes have no gaps, they are below the number of rows.
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
    """Return codes without gaps that count up in the order of their first rows, and the first row of each code.

    The number 5 first occurs in row 0 and becomes 0, and the number 3 first occurs in row 2 and becomes 1:

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
    # If the column is empty, `low` is above `high`, so it is hashed.
    if 0 <= high - low < CLOSE_VALUES:
        return _Codes(column - low, high - low + 1)
    return _hashed(column)


def _hashed(values: Integers) -> _Codes:
    """Return codes for the values. They have no gaps, and count up in the order in which the values first occur."""
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
    """Return the codes that `_hashed` returns, found by a comparison of all values with each distinct value.

    None if there are more than `FEW_VALUES` distinct values. A comparison takes a nanosecond for each row.
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

"""Where the records of an SQLite table keep the values of integer columns.

A record is the content of a row. It begins with its header: the header's length, and the type of each column. The
values follow, in the order of the columns: https://www.sqlite.org/fileformat2.html#record_format. In tables of integers
each number of the header is a single byte. This module reads only such records.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from multicard.trace.encoding import EMPTY, encode
from multicard.trace.model import Integers

# The bytes that a value takes in a record, indexed by its type. Types from 12 on are texts and blobs.
VALUE_BYTES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((value_type - 12) // 2 for value_type in range(12, 128)))
# Types of integers. Types 1 to 6 have the value stored in the record. Types 0, 8 and 9 have no stored value, since they
# mean an empty cell, 0 and 1. Type 7 is a floating-point number, which this module does not read.
STORED_INTEGER_TYPES = range(1, 7)
CONSTANT_TYPES = {0: EMPTY, 8: 0, 9: 1}
# In a number of varying length, every byte but the last has the highest bit set, so it is at least 128. A number below
# 128 is a single byte.
FIRST_LONG_VARINT = 128


class UnknownForm(Exception):
    """The table is not stored in a form that this module and `sqlite_pages` read."""


class RecordForm(NamedTuple):
    """Where records with one header keep the wanted columns; offsets count from the header's first byte.

    `begins`: offset of each column's value. `shifts`: number of bits by which the eight bytes from there must be
    shifted right to leave the value. `constants`: the value of a column whose type means a value, None if the value is
    stored. `end`: offset behind the value of the last wanted column.
    """

    begins: list[int]
    shifts: list[int]
    constants: list[int | None]
    end: int


class RecordForms:
    """The forms of a table's records. The form of each header is computed only once."""

    def __init__(self, positions: Sequence[int], undivided_bytes: int) -> None:
        """Take what is known of the table before a record is read.

        `positions`: those of the wanted columns among all columns of the table; at least one. `undivided_bytes`: so
        many bytes of each record are certainly on one page. A record whose wanted values need more is of unknown form.
        """
        self._positions = positions
        self._undivided_bytes = undivided_bytes
        self._forms: dict[tuple[int | None, ...], RecordForm] = {}

    def of(self, content: Integers, records: Integers) -> tuple[Integers, list[RecordForm]]:
        """Return a code for each record, and the form of the records of each code.

        `content`: bytes, of which the last eight belong to no record. `records`: the offset in them of each record.

        Raises `UnknownForm` if a record is not of a form that this module reads.
        """
        # The rows of a table have few different headers. To find these, types are compared eight at a time, as one
        # 64-bit word.
        header_lengths = content[records].astype(np.int64)
        type_count = max(self._positions) + 1
        eight_bytes = number_at_each_byte(content, "<i8")
        words: list[Integers] = []
        for first_type in range(0, type_count, 8):
            words.append(eight_bytes[records + 1 + first_type])
        types_in_last_word = type_count % 8
        if types_in_last_word:
            words[-1] &= (1 << 8 * types_in_last_word) - 1

        # `encode` numbers the distinct headers, and returns the number of each record's header.
        codes, headers = encode([*words, header_lengths])
        for header in headers:
            if header not in self._forms:
                self._forms[header] = self._form(type_count, header)
        return codes.astype(np.intp), [self._forms[header] for header in headers]

    def _form(self, type_count: int, header: tuple[int | None, ...]) -> RecordForm:
        """Return the form of records with this header.

        `header`: the types as 64-bit words of eight types each, and then the length of the header. `type_count`: number
        of columns up to the last wanted one; types of later columns are ignored.
        """
        # `encode` returns None for the number `EMPTY`. As a word, this number does not consist of known types.
        numbers = [number for number in header if number is not None]
        if len(numbers) < len(header):
            raise UnknownForm
        *words, header_length = numbers
        if not type_count < header_length < FIRST_LONG_VARINT:
            raise UnknownForm
        types = b"".join(word.to_bytes(8, "little", signed=True) for word in words)[:type_count]
        if max(types) >= FIRST_LONG_VARINT:
            raise UnknownForm
        wanted_types = [types[position] for position in self._positions]
        if any(code not in STORED_INTEGER_TYPES and code not in CONSTANT_TYPES for code in wanted_types):
            raise UnknownForm

        # The values follow the header, in the order of their columns.
        value_bytes = [VALUE_BYTES[code] for code in types]
        offsets = np.cumsum([header_length, *value_bytes]).tolist()
        end = offsets[-1]
        if end > self._undivided_bytes:
            raise UnknownForm
        return RecordForm(
            begins=[offsets[position] for position in self._positions],
            shifts=[64 - 8 * VALUE_BYTES[code] if code in STORED_INTEGER_TYPES else 0 for code in wanted_types],
            constants=[CONSTANT_TYPES.get(code) for code in wanted_types],
            end=end,
        )


def number_at_each_byte(content: Integers, dtype: str) -> Integers:
    """Return a view of the numbers that begin at each byte of some content.

    The 16-bit numbers of the bytes 1, 2, 3, highest byte first, are 1 * 256 + 2 and 2 * 256 + 3:

    >>> number_at_each_byte(np.array([1, 2, 3], np.uint8), ">u2").tolist()
    [258, 515]
    """
    number_bytes = np.dtype(dtype).itemsize
    return np.ndarray((len(content) - number_bytes + 1,), dtype, content, strides=(1,))

"""Columns of integers of an SQLite table, taken many at a time from the pages of the file.

SQLite hands out one value after another, which takes most of the time of reading tens of millions of rows. The layout
of a file is fixed: https://www.sqlite.org/fileformat2.html. A table or part of it that is laid out in any way not
expected here, damaged ones among them, is left to SQLite.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from multicard.trace.encoding import EMPTY, encode
from multicard.trace.model import Integers
from multicard.trace.sqlite_file import SqliteFile

BATCH_BYTES = 1 << 21  # of pages: fewer cost more calls, more leave a core's cache
PART_BATCHES = 16
INTERIOR, LEAF = 5, 13  # kinds of pages of a table with row ids
DEEPEST = 20
# Bytes of a value by its type, and the types of integers: two of them are the value.
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((code - 12) // 2 for code in range(12, 128)))
_READ = 2
_INTEGERS = {0: EMPTY, **dict.fromkeys(range(1, 7), _READ), 8: 0, 9: 1}

Columns = dict[str, Integers]


class _Unexpected(Exception):
    """The file is not laid out as expected here."""


def integer_columns(database: SqliteFile, table: str, names: Sequence[str]) -> list[Callable[[], Iterator[Columns]]]:
    """Read some columns of a table, an empty cell as `EMPTY`, in parts that several threads may read at once."""
    layout, parts = _split(database, table, names)

    def by_sqlite(condition: str) -> Iterator[Columns]:
        select = ", ".join(f'COALESCE("{name}", {EMPTY})' for name in names)
        for rows in database.batches(f"SELECT {select} FROM {table} WHERE {condition}"):
            yield dict(zip(names, np.array(rows, np.int64).T, strict=True))

    def part(batches: list[Integers], condition: str) -> Iterator[Columns]:
        try:
            return iter([layout.values(pages) for pages in batches] if layout else by_sqlite(condition))
        except (_Unexpected, IndexError):
            return by_sqlite(condition)

    return [partial(part, *each) for each in parts]


def _split(
    database: SqliteFile, table: str, names: Sequence[str]
) -> "tuple[_Layout | None, list[tuple[list[Integers], str]]]":
    """Parts of a table: their pages in batches, and the condition for their rows; one part if there is no layout."""
    try:
        layout = _Layout(database, table, names)
        leaves = layout.leaves()
        batches = np.array_split(leaves, min(len(leaves), -(-len(leaves) * layout.page_bytes // BATCH_BYTES)))
        parts = [batches[at : at + PART_BATCHES] for at in range(0, len(batches), PART_BATCHES)]
        firsts = [layout.first_row(int(part[0][0])) for part in parts[1:]]
    except (_Unexpected, IndexError):
        return None, [([], "TRUE")]
    bounds = pairwise(["TRUE", *(f"rowid >= {first}" for first in firsts), "FALSE"])
    return layout, [(part, f"{own} AND NOT {next_one}") for part, (own, next_one) in zip(parts, bounds, strict=True)]


class _Layout:
    """Where the values of some columns lie in the pages of a table."""

    def __init__(self, database: SqliteFile, table: str, names: Sequence[str]) -> None:
        self._path, self._names = database.path, names
        self._known: dict[tuple[int | None, ...], list[list[int]]] = {}
        columns = database.ask('SELECT name, pk OR "hidden" FROM pragma_table_xinfo(?)', table)
        if any(special for _, special in columns):
            raise _Unexpected  # those are not stored in their place
        order = [name for name, _ in columns]
        self._at = [order.index(name) for name in names]
        ((self._root,),) = database.ask("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", table)
        with self._path.open("rb") as file:
            header = file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self.page_bytes = 65536 if size == 1 else size
        journal = self._path.with_name(f"{self._path.name}-journal")
        if len(header) < 100 or header[18:21] != b"\x01\x01\x00" or self.page_bytes < 512 or journal.exists():
            raise _Unexpected  # a journal, or bytes at the end of pages that are not theirs
        self._undivided = (self.page_bytes - 12) * 32 // 255 - 40  # bytes of a row that are on its own page
        self._count = self._path.stat().st_size // self.page_bytes

    def leaves(self) -> Integers:
        """Numbers of the pages that hold the rows, in order."""
        pages = np.array([self._root])
        for _ in range(DEEPEST):
            content = self._read(pages[:1])
            if content[0] == LEAF:
                return pages
            content = self._read(pages)
            page, cell = self._cells(content, INTERIOR)
            last = np.arange(len(pages)) * self.page_bytes
            # The child of each cell, and after those of its page the rightmost one, which the page's header names.
            order = np.argsort(np.concatenate((page, np.arange(len(pages)))), kind="stable")
            children = _numbers(content, ">u4")[np.concatenate((cell, last + 8))]
            pages = children[order].astype(np.int64)
            if len(pages) > self._count or len(np.unique(pages)) < len(pages):
                raise _Unexpected
        raise _Unexpected

    def first_row(self, page: int) -> int:
        """Row id of the first row of a page."""
        content = self._read(np.array([page]))
        _, cell = self._cells(content, LEAF)
        at = _after_number(content, cell[:1])
        number = 0
        for byte in content[int(at[0]) : int(_after_number(content, at)[0])].tolist():
            number = number << 7 | byte & 127
        if not 0 <= number < 1 << 56:
            raise _Unexpected
        return number

    def values(self, pages: Integers) -> Columns:
        """Columns of the rows of some pages."""
        content = self._read(pages)
        page, cell = self._cells(content, LEAF)
        header = _after_number(content, _after_number(content, cell))  # behind the size of the row and its id
        length = content[header].astype(np.int64)
        # The types of values precede them, a byte each; the rows of a table have few different ones.
        count = max(self._at) + 1
        words = [_numbers(content, "<i8")[header + 1 + at] for at in range(0, count, 8)]
        if count % 8:
            words[-1] &= (1 << 8 * (count % 8)) - 1
        codes, kinds = encode([*words, length])
        if not kinds:
            return {name: np.empty(0, np.int64) for name in self._names}
        codes = codes.astype(np.intp)
        self._known |= {kind: self._places(count, *kind) for kind in kinds if kind not in self._known}
        starts, shifts, fixed = np.array([self._known[kind] for kind in kinds]).transpose(1, 2, 0).copy()
        if (header + _of(starts[-1], codes) > (page + 1) * self.page_bytes).any():
            raise _Unexpected
        found = {}
        for at, name in enumerate(self._names):
            read = fixed[at] == _READ
            if read.any():
                found[name] = _numbers(content, ">i8")[header + _of(starts[at], codes)].astype(np.int64)
                found[name] >>= _of(shifts[at], codes)
            if not read.all():
                said = fixed[at].take(codes)
                found[name] = np.where(said == _READ, found[name], said) if read.any() else said
        return found

    def _places(self, count: int, *kind: int | None) -> list[list[int]]:
        """Where the values of rows with these types are: three lists with a place for each of them.

        Their begins, counted from the header, and at last where all of them end; how many bits the eight bytes from
        there have too many; the value itself where the type is one, else `_READ`.
        """
        *words, length = kind
        if None in words or not count < length < 128:  # type: ignore[operator]
            raise _Unexpected
        types = b"".join(word.to_bytes(8, "little", signed=True) for word in words)[:count]  # type: ignore[union-attr]
        own = [types[at] for at in self._at]
        if max(types) > 127 or not set(own) <= set(_INTEGERS):
            raise _Unexpected
        edges = np.cumsum([length, *(_SIZES[each] for each in types)]).tolist()
        if edges[-1] > self._undivided:
            raise _Unexpected
        shifts = [64 - 8 * (_SIZES[each] or 8) for each in own]
        return [[*(edges[at] for at in self._at), edges[-1]], [*shifts, 0], [*(_INTEGERS[each] for each in own), 0]]

    def _cells(self, content: Integers, kind: int) -> tuple[Integers, Integers]:
        """Of each cell of pages of a kind: the number of its page among these, and where it begins."""
        base = np.arange(len(content) // self.page_bytes) * self.page_bytes
        count = content[base + 3].astype(np.int64) << 8 | content[base + 4]
        first = 12 if kind == INTERIOR else 8
        if (content[base] != kind).any() or (first + 2 * count > self.page_bytes).any():
            raise _Unexpected
        most = int(count.max(initial=0))
        own_page = content[: len(base) * self.page_bytes].reshape(-1, self.page_bytes)
        cell = np.ascontiguousarray(own_page[:, first : first + 2 * most]).view(">u2").astype(np.int64)
        used = np.arange(most) < count[:, np.newaxis]
        if (used & ((cell < first) | (cell + 4 > self.page_bytes))).any():
            raise _Unexpected
        cell += base[:, np.newaxis]
        return np.repeat(np.arange(len(base)), count), cell[used]

    def _read(self, pages: Integers) -> Integers:
        """Content of some pages, one after another, and some bytes more."""
        if (pages < 2).any() or (pages > self._count).any():
            raise _Unexpected
        runs = np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1)
        content = np.zeros(len(pages) * self.page_bytes + 8, np.uint8)
        free = memoryview(content)
        with self._path.open("rb", buffering=0) as file:
            for run in runs:
                size = len(run) * self.page_bytes
                file.seek((int(run[0]) - 1) * self.page_bytes)
                if file.readinto(free[:size]) != size:
                    raise _Unexpected
                free = free[size:]
        return content


def _of(kinds: Integers, codes: Integers) -> Any:
    """The value of each row's kind; a single number where they are the same."""
    return kinds[0] if (kinds == kinds[0]).all() else kinds.take(codes)


def _numbers(content: Integers, kind: str) -> Integers:
    """A number that begins at each byte."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(content) - size + 1,), kind, content, strides=(1,))


def _after_number(content: Integers, at: Integers) -> Integers:
    """Where numbers of varying length end that begin at some places: of each byte the highest bit says whether."""
    more = np.ones(len(at), bool)
    for size in range(1, 10):
        if more.all():  # most rows of a batch have numbers of one length
            more, end = content[size - 1 :].take(at) > 127, at + size
        else:
            end += more
            more &= content[end - 1] > 127
        if not more.any():
            return end
    raise _Unexpected

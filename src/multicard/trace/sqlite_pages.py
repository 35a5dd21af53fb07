"""Read integer columns of an SQLite table many rows at a time, from the pages of the file.

SQLite hands out one value after another, which takes most of the time of reading tens of millions of rows. The format
of a file is fixed: https://www.sqlite.org/fileformat2.html. In short:

- A file is a list of pages of one size, numbered from 1. A table is a tree of pages: interior pages name their child
  pages, leaf pages hold the rows.
- A page begins with a header: its type in byte 0, the number of its cells in bytes 3 and 4, and in bytes 8 to 11 of an
  interior page the number of the rightmost child. A list of pointers follows, two bytes for each cell: the offset of
  the cell from the beginning of the page.
- A cell of a leaf page is a row: the size of its record, the row id, the record. The first two are numbers of varying
  length (`_after_varint`).
- Where a record keeps the values of its columns is a question of its own (`sqlite_records`).

If a table, or a part of it, has another form or is damaged, SQLite reads it instead.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from multicard.trace.encoding import EMPTY
from multicard.trace.model import Integers
from multicard.trace.sqlite_file import BatchSizes, SqliteFile
from multicard.trace.sqlite_records import FIRST_LONG_VARINT, RecordForms, UnknownForm, number_at_each_byte

# Types of pages, and the length of the header of each.
INTERIOR_PAGE = 5
LEAF_PAGE = 13
PAGE_HEADER_BYTES = {INTERIOR_PAGE: 12, LEAF_PAGE: 8}
# A table whose tree has more levels than this is left to SQLite.
DEEPEST_TREE = 20

Columns = dict[str, Integers]
ColumnReader = Callable[[], Iterator[Columns]]


class _Part(NamedTuple):
    """Consecutive leaf pages of a table, in batches, and the SQL condition that only the rows on these pages meet."""

    batches: list[Integers]
    condition: str


class _Cells(NamedTuple):
    """The cells of some pages, which `_TablePages._read` returned one after another.

    `page`: for each cell the position of its page among these pages. `begin`: the offset of the cell in what was read.
    """

    page: Integers
    begin: Integers


def integer_columns(database: SqliteFile, table: str, names: Sequence[str]) -> list[ColumnReader]:
    """Return a reader for each part of a table's rows; several threads may call readers at the same time.

    A reader yields batches of rows: an array for each of the columns `names`, with `EMPTY` where a cell is empty.
    """

    def read_by_sqlite(condition: str) -> Iterator[Columns]:
        select = ", ".join(f'COALESCE("{name}", {EMPTY})' for name in names)
        for rows in database.batches(f"SELECT {select} FROM {table} WHERE {condition}"):
            yield dict(zip(names, np.array(rows, np.int64).T, strict=True))

    try:
        pages = _TablePages(database, table, names)
        parts = _split(pages, database.batch_sizes)
    except (UnknownForm, IndexError):
        return [partial(read_by_sqlite, "TRUE")]

    def read_part(part: _Part) -> Iterator[Columns]:
        # All batches are read before the first one is returned. If SQLite had to take over after that, it would yield
        # the rows of the first batches again.
        try:
            return iter([pages.columns(batch) for batch in part.batches])
        except (UnknownForm, IndexError):
            return read_by_sqlite(part.condition)

    return [partial(read_part, part) for part in parts]


def _split(pages: "_TablePages", sizes: BatchSizes) -> list[_Part]:
    """Divide a table into parts."""
    leaves = pages.leaves()
    table_bytes = len(leaves) * pages.page_bytes
    # The number is rounded up, but it is at most the number of pages, so that no batch is empty.
    batch_count = min(len(leaves), -(-table_bytes // sizes.page_bytes))
    batches = np.array_split(leaves, batch_count)
    part_begins = range(0, len(batches), sizes.batches_per_part)
    batches_of_parts = [batches[begin : begin + sizes.batches_per_part] for begin in part_begins]

    # Row ids grow from page to page, so the first row id of a part is the upper bound of the part before it.
    bounds = ["TRUE"]
    for batches_of_part in batches_of_parts[1:]:
        first_page = int(batches_of_part[0][0])
        bounds.append(f"rowid >= {pages.first_row(first_page)}")
    bounds.append("FALSE")
    conditions = [f"{lower} AND NOT {upper}" for lower, upper in pairwise(bounds)]
    return [_Part(*part) for part in zip(batches_of_parts, conditions, strict=True)]


class _TablePages:
    """The pages of one table, from which the wanted columns are read.

    Every method raises `UnknownForm` or `IndexError` if the pages have another form than this module reads.
    """

    def __init__(self, database: SqliteFile, table: str, names: Sequence[str]) -> None:
        self._path = database.path
        self._names = names
        columns = database.ask('SELECT name, pk OR "hidden" FROM pragma_table_xinfo(?)', table)
        # Generated columns, and primary keys that are another name of the row id, are not stored at their position in a
        # record.
        if any(is_special for _, is_special in columns):
            raise UnknownForm
        column_names = [name for name, _ in columns]
        ((self._root,),) = database.ask("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", table)
        self.page_bytes = self._read_page_bytes()
        self._page_count = self._path.stat().st_size // self.page_bytes
        # A record that does not fit on its page continues on other pages. At least this many of its bytes are on its
        # own page; the bound that the format states is a little higher (section 1.6, "M").
        undivided_bytes = (self.page_bytes - 12) * 32 // 255 - 40
        positions = [column_names.index(name) for name in names]
        self._record_forms = RecordForms(positions, undivided_bytes)

    def _read_page_bytes(self) -> int:
        """Return the size of a page, as the header of the file states it.

        Raises `UnknownForm` if the file alone does not hold the current content of the database.
        """
        with self._path.open("rb") as file:
            header = file.read(100)
        if len(header) < 100:
            raise UnknownForm
        size = int.from_bytes(header[16:18], "big")
        page_bytes = 65536 if size == 1 else size
        # Bytes 18 and 19 are 1 if changes are written to the file itself, and not to a log beside it. Byte 20 is the
        # number of bytes at the end of each page that hold no rows. A rollback journal exists while a change is
        # unfinished, and holds pages as they were before.
        has_own_changes = header[18:20] == b"\x01\x01" and header[20] == 0
        journal = self._path.with_name(f"{self._path.name}-journal")
        if not has_own_changes or page_bytes < 512 or journal.exists():
            raise UnknownForm
        return page_bytes

    def leaves(self) -> Integers:
        """Return the numbers of the pages that hold the rows, in the order of the rows."""
        pages = np.array([self._root])
        for _ in range(DEEPEST_TREE):
            # All pages of a level of the tree have one type.
            if self._read(pages[:1])[0] == LEAF_PAGE:
                return pages
            pages = self._children(pages)
            if len(pages) > self._page_count or len(np.unique(pages)) < len(pages):
                raise UnknownForm
        raise UnknownForm

    def _children(self, pages: Integers) -> Integers:
        """Return the child pages of interior pages, in the order of their rows."""
        content = self._read(pages)
        cells = self._cells(content, INTERIOR_PAGE)
        positions = np.arange(len(pages))
        # A cell begins with the number of its child page. The header has the number of the rightmost child, which comes
        # after all of these.
        rightmost = positions * self.page_bytes + 8
        parent = np.concatenate((cells.page, positions))
        child = number_at_each_byte(content, ">u4")[np.concatenate((cells.begin, rightmost))]
        return child[np.argsort(parent, kind="stable")].astype(np.int64)

    def first_row(self, page: int) -> int:
        """Return the row id of the first row of a leaf page."""
        content = self._read(np.array([page]))
        cells = self._cells(content, LEAF_PAGE)
        begin = _after_varint(content, cells.begin[:1])
        end = _after_varint(content, begin)
        row = 0
        for byte in content[int(begin[0]) : int(end[0])].tolist():
            row = row << 7 | byte & 127
        # Negative row ids, and those that need a ninth byte, do not occur in exports.
        if not 0 <= row < 1 << 56:
            raise UnknownForm
        return row

    def columns(self, pages: Integers) -> Columns:
        """Return the wanted columns of all rows on some leaf pages."""
        content = self._read(pages)
        cells = self._cells(content, LEAF_PAGE)
        row_ids = _after_varint(content, cells.begin)
        records = _after_varint(content, row_ids)
        codes, forms = self._record_forms.of(content, records)
        if not forms:
            return {name: np.empty(0, np.int64) for name in self._names}

        ends = np.array([form.end for form in forms])
        page_ends = (cells.page + 1) * self.page_bytes
        is_beyond_page = records + _of_row(ends, codes) > page_ends
        if is_beyond_page.any():
            raise UnknownForm

        eight_bytes = number_at_each_byte(content, ">i8")
        columns: Columns = {}
        for column, name in enumerate(self._names):
            constants = [form.constants[column] for form in forms]
            is_stored = np.array([constant is None for constant in constants])
            fixed = np.array([constant or 0 for constant in constants])
            if not is_stored.any():
                columns[name] = fixed.take(codes)
                continue
            begins = np.array([form.begins[column] for form in forms])
            shifts = np.array([form.shifts[column] for form in forms])
            values = eight_bytes[records + _of_row(begins, codes)].astype(np.int64)
            # Shifting right drops the bytes behind the value, and keeps its sign.
            values >>= _of_row(shifts, codes)
            if not is_stored.all():
                values = np.where(is_stored.take(codes), values, fixed.take(codes))
            columns[name] = values
        return columns

    def _cells(self, content: Integers, page_type: int) -> _Cells:
        """Return the cells of pages of one type; `content` is what `_read` returned for these pages."""
        page_count = len(content) // self.page_bytes
        page_begins = np.arange(page_count) * self.page_bytes
        if (content[page_begins] != page_type).any():
            raise UnknownForm
        high_bytes = content[page_begins + 3].astype(np.int64)
        low_bytes = content[page_begins + 4]
        cell_counts = high_bytes << 8 | low_bytes
        header_bytes = PAGE_HEADER_BYTES[page_type]
        pointer_ends = header_bytes + 2 * cell_counts
        if (pointer_ends > self.page_bytes).any():
            raise UnknownForm

        # The pointers are a rectangle with a row for each page, as wide as the longest list of pointers. For a page
        # with a shorter list, the rest of the row holds other bytes of the page, which are not used.
        longest = int(cell_counts.max(initial=0))
        page_rows = content[: page_count * self.page_bytes].reshape(-1, self.page_bytes)
        pointer_bytes = np.ascontiguousarray(page_rows[:, header_bytes : header_bytes + 2 * longest])
        pointers = pointer_bytes.view(">u2").astype(np.int64)
        is_used = np.arange(longest) < cell_counts[:, np.newaxis]

        # A cell has at least four bytes, and lies behind the header of its page.
        is_outside = (pointers < header_bytes) | (pointers + 4 > self.page_bytes)
        if (is_used & is_outside).any():
            raise UnknownForm
        begins = pointers + page_begins[:, np.newaxis]
        page_of_cell = np.repeat(np.arange(page_count), cell_counts)
        return _Cells(page_of_cell, begins[is_used])

    def _read(self, pages: Integers) -> Integers:
        """Return the bytes of some pages, one page after another, and then eight zeros.

        The zeros allow reading eight bytes from any offset in the pages.
        """
        # Page 1 begins with the header of the file, so it is never a page of one of these tables.
        if (pages < 2).any() or (pages > self._page_count).any():
            raise UnknownForm
        # Pages that follow each other in the file are read at once.
        begins_run = np.diff(pages) != 1
        runs = np.split(pages, np.flatnonzero(begins_run) + 1)
        content = np.zeros(len(pages) * self.page_bytes + 8, np.uint8)
        unfilled = content.data
        with self._path.open("rb", buffering=0) as file:
            for run in runs:
                first_page = int(run[0])
                run_bytes = len(run) * self.page_bytes
                file.seek((first_page - 1) * self.page_bytes)
                if file.readinto(unfilled[:run_bytes]) != run_bytes:
                    raise UnknownForm
                unfilled = unfilled[run_bytes:]
        return content


def _of_row(values: Integers, codes: Integers) -> Integers:
    """Return for each row the value of its code; `values` are by code.

    If all values are equal, return an array of only one, which NumPy applies to all rows. That saves a large array.
    """
    if (values == values[0]).all():
        return values[:1]
    return values.take(codes)


def _after_varint(content: Integers, begins: Integers) -> Integers:
    """Return for each number of varying length the offset behind it; `begins` are the offsets of the numbers.

    The highest bit of a byte is set if another byte follows. A number has at most nine bytes.

    In the example the number at offset 0 has one byte. The number at offset 1 has two bytes, because its first byte,
    129, has the highest bit set:

    >>> _after_varint(np.array([5, 129, 7], np.uint8), np.array([0, 1])).tolist()
    [1, 3]
    """
    continues = np.ones(len(begins), bool)
    ends = begins
    for byte_count in range(1, 10):
        if continues.all():
            # No number has ended yet, so all have the same length so far. In most batches all numbers have one length.
            last_byte = content[byte_count - 1 :].take(begins)
            continues = last_byte >= FIRST_LONG_VARINT
            ends = begins + byte_count
        else:
            ends += continues
            continues &= content[ends - 1] >= FIRST_LONG_VARINT
        if not continues.any():
            return ends
    raise UnknownForm

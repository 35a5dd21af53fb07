"""A log file of bounded size: it keeps the beginning and the end of a long output, and drops the middle."""

from pathlib import Path
from types import TracebackType
from typing import Self

HEAD_BYTES = 4_000_000
TAIL_BYTES = 4_000_000


class BoundedLog:
    """A file that is appended to. When it becomes too long, its middle is removed.

    A line stands in place of the removed bytes, and counts them. The first part of the file holds at least the first
    `head_bytes` of the output. The last part holds between half of `tail_bytes` and twice `tail_bytes`. Both are cut
    at the end of a line, or within a line that is longer than half of `tail_bytes`.

    The middle is removed only when the file is longer than `head_bytes` + 2 · `tail_bytes`, so that the tail is copied
    only once for many lines.
    """

    def __init__(self, path: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES):
        self._file = path.open("w+b")
        self._head_limit = head_bytes
        self._tail_limit = tail_bytes
        self._file_size = 0
        self._written = 0  # bytes of the whole output, including those that were removed from the file
        self._head_size: int | None = None  # bytes before the line that counts; None until the first removal

    def write(self, content: bytes) -> None:
        """Append to the file, and flush it, so that another process can read the content at once."""
        self._file.write(content)
        self._file.flush()
        self._written += len(content)
        self._file_size += len(content)
        if self._file_size > self._head_limit + 2 * self._tail_limit:
            self._leave_out_middle()

    def _leave_out_middle(self) -> None:
        if self._head_size is None:
            self._head_size = self._end_of_line(self._head_limit)
        self._file.seek(self._end_of_line(self._file_size - self._tail_limit))
        tail = self._file.read()
        missing = self._written - self._head_size - len(tail)
        self._file.seek(self._head_size)
        self._file.write(b"\n[multicard left out %d bytes of output here]\n\n" % missing)
        self._file.write(tail)
        self._file.truncate()
        self._file.flush()
        self._file_size = self._file.tell()

    def _end_of_line(self, offset: int) -> int:
        """Return the offset after the end of the line that contains `offset`.

        If the line does not end within half of `tail_bytes`, return `offset` itself.
        """
        self._file.seek(offset)
        line = self._file.readline(self._tail_limit // 2)
        return offset + len(line) if line.endswith(b"\n") else offset

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

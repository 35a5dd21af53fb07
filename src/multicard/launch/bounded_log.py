"""A log file of bounded size, which keeps the beginning and the end of a long output."""

from pathlib import Path
from types import TracebackType
from typing import Self

HEAD_BYTES = 4_000_000
TAIL_BYTES = 4_000_000


class BoundedLog:
    """A file that is appended to, and whose middle is left out when it becomes too long.

    At any time it holds at least `head_bytes` of the beginning of the output, up to the end of a line, and `tail_bytes`
    of its end. Where bytes are missing, a line counts them. The file takes at most `head_bytes` and twice `tail_bytes`,
    so that a byte of the tail is copied about once.
    """

    def __init__(self, path: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES):
        self._file = path.open("w+b")
        self._head_limit = head_bytes
        self._tail_limit = tail_bytes
        self._file_size = 0
        self._written = 0  # bytes in all, the missing ones included
        self._head_size: int | None = None  # None until bytes are left out

    def write(self, content: bytes) -> None:
        """Append to the file; it can be read there at once."""
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
        """Return the offset after the line at `offset`; `offset` itself if that line is long."""
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

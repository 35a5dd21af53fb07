"""The output of a job in a file of bounded size: all of it or, of a long one, its beginning and its end."""

from pathlib import Path
from types import TracebackType
from typing import Self

HEAD_BYTES = 4_000_000  # of the beginning, which are kept, up to the end of a line
TAIL_BYTES = 4_000_000  # of the end, which are kept at least
MOST_BYTES = HEAD_BYTES + 2 * TAIL_BYTES  # that the file may take: so every byte is copied at most once, or so


class BoundedLog:
    """A file that is appended to, and whose middle is left out when it becomes longer than `MOST_BYTES`.

    At any time it holds the beginning and the end of what was written. Where something is missing, a line says how
    much.
    """

    def __init__(self, path: Path):
        self._file = path.open("w+b")
        self._size = 0  # of the file
        self._written = 0  # in all
        self._head: int | None = None  # size of the beginning, once something is left out

    def write(self, content: bytes) -> None:
        """Append to the file; it can be read there at once."""
        self._file.write(content)
        self._file.flush()
        self._written += len(content)
        self._size += len(content)
        if self._size > MOST_BYTES:
            self._leave_out()

    def _leave_out(self) -> None:
        if self._head is None:
            self._head = self._end_of_line(HEAD_BYTES)
        start = self._end_of_line(self._size - TAIL_BYTES)
        self._file.seek(start)
        tail = self._file.read()
        missing = self._written - self._head - len(tail)  # what was left out before included
        self._file.seek(self._head)
        self._file.write(b"\n[multicard left out %d bytes of output here]\n\n" % missing)
        self._file.write(tail)
        self._file.truncate()
        self._file.flush()
        self._size = self._file.tell()

    def _end_of_line(self, place: int) -> int:
        """Return where the line at `place` ends; the place itself if that is far, as in output without lines."""
        self._file.seek(place)
        rest = self._file.readline(TAIL_BYTES // 2)
        return place + len(rest) if rest.endswith(b"\n") else place

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The log of a job: its output, of which much is cut to its first and its last part."""

import threading
from typing import BinaryIO

from multicard.core.layout import PROGRESS
from multicard.core.units import BYTES, with_unit

KEPT_BYTES = 5_000_000  # of the first and of the last output
LONGEST_LINE = 1 << 20  # characters that are read at once, where a job prints no end of a line


class Log:
    """Output in a file that never grows beyond three times `KEPT_BYTES`, nor what of it is in memory beyond once.

    Whoever writes and who finishes may be different threads.

    Parameters
    ----------
    file
        Empty, open to be written and read.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._lock = threading.Lock()
        self._end = 0
        self._first_end: int | None = None  # of the first part, where more follows
        self._remark = b""  # between the parts
        self._left_out = 0  # bytes

    def write(self, line: str) -> None:
        """Add a line, or a part of one, which others can read at once."""
        content = line.encode(errors="replace")
        with self._lock:
            if self._first_end is None and self._end + len(content) > KEPT_BYTES:
                self._first_end = self._end
            self._file.write(content)
            self._file.flush()
            self._end += len(content)
            if self._end > 3 * KEPT_BYTES:
                self._cut()

    def finish(self) -> None:
        """Leave no more than the first and the last part."""
        with self._lock:
            if self._end > 2 * KEPT_BYTES:
                self._cut()

    def _cut(self) -> None:
        before = self._first_end + len(self._remark)
        self._file.seek(max(before, self._end - KEPT_BYTES))
        last = self._file.read()
        last = last[last.find(b"\n") + 1 :]  # whole lines, if there is an end of one
        self._left_out += self._end - before - len(last)
        left_out, kept = with_unit(self._left_out, BYTES), with_unit(KEPT_BYTES, BYTES)
        self._remark = f"\n{PROGRESS}  {left_out} of output left out here, after the first {kept}\n".encode()
        self._file.seek(self._first_end)
        self._file.write(self._remark + last)
        self._file.truncate()
        self._file.flush()
        self._end = self._file.tell()

"""Read gzipped files from any source, with a limit: a small file may unpack to more than memory or a disk holds."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# A gzipped file begins with these bytes (RFC 1952).
GZIP_MAGIC = b"\x1f\x8b"
# With this value of `wbits`, zlib reads gzip's format (zlib's manual, inflateInit2).
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS


class UnpacksTooLarge(ValueError):
    """A gzipped file unpacks to more than its limit."""


@dataclass(frozen=True)
class UnpackLimit:
    """How many bytes a file may unpack to: `always_bytes`, or `times` its own size if that is more."""

    times: int
    always_bytes: int = 64 << 20

    def bytes_for(self, path: Path) -> int:
        """Return the number of bytes that the file at `path` may unpack to."""
        return max(self.always_bytes, self.times * path.stat().st_size)


class _BoundedReader(io.BufferedIOBase):
    """A stream that raises `UnpacksTooLarge` once more than `most_bytes` have been read from its source.

    `times`: the factor of the `UnpackLimit`, for the message.
    """

    def __init__(self, source: IO[bytes] | gzip.GzipFile, most_bytes: int, times: int) -> None:
        self._source = source
        self._remaining = most_bytes
        self._times = times

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes; the whole rest if `size` is negative or None."""
        # Reading one byte more than is allowed shows whether there is more.
        most = self._remaining + 1
        content = self._source.read(most if size is None or size < 0 else min(size, most))
        self._remaining -= len(content)
        if self._remaining < 0:
            raise UnpacksTooLarge(f"unpacks to more than {self._times} times its size")
        return content


@contextmanager
def open_gzip(path: Path, limit: UnpackLimit) -> Iterator[io.BufferedIOBase]:
    """Open a gzipped file as a stream of its content.

    Reading raises `UnpacksTooLarge` beyond the limit, `EOFError` if the end of the file is missing, and `OSError` or
    `zlib.error` if the file is damaged.
    """
    with gzip.open(path) as file:
        yield _BoundedReader(file, limit.bytes_for(path), limit.times)


@dataclass(frozen=True)
class Unpacked:
    """The content of a gzipped file. `is_cut`: True if the end of the file, and so of the content, is missing."""

    content: bytes
    is_cut: bool


def read_gzip(path: Path, limit: UnpackLimit | None) -> Unpacked:
    """Return the content of a gzipped file. If the end of the file is missing, return the content up to there.

    `limit`: None for no limit.

    Raises `UnpacksTooLarge` beyond the limit, and `OSError` or `zlib.error` if the file is damaged.
    """
    try:
        if limit is None:
            with gzip.open(path) as file:
                return Unpacked(file.read(), is_cut=False)
        with open_gzip(path, limit) as stream:
            return Unpacked(stream.read(), is_cut=False)
    except EOFError:
        pass
    # The end of the file is missing. `gzip` does not return what it had read, so zlib unpacks the file again.
    content = bytearray()
    packed = path.read_bytes()
    most_bytes = None if limit is None else limit.bytes_for(path)
    # A file may have several members, one after another (RFC 1952, 2.2), and zeros after a member, which `gzip` skips.
    while packed:
        unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
        # One byte more than is allowed shows whether there is more. 0 would mean no limit.
        content += unpacker.decompress(packed, 0 if most_bytes is None else most_bytes + 1 - len(content))
        if limit is not None and most_bytes is not None and len(content) > most_bytes:
            raise UnpacksTooLarge(f"unpacks to more than {limit.times} times its size")
        packed = unpacker.unused_data.lstrip(b"\0")
    return Unpacked(bytes(content), is_cut=True)

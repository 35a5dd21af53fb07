"""The text of a trace file: plain or gzipped, as its first bytes tell, and up to the place where the file was cut."""

import gzip
import zlib
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.trace.kineto.findings import CUT, GZIPPED, NOT_GZIPPED, Findings

# A gzipped file may unpack to this much, or to this many times its own size. Real traces reach 30 times.
SMALL_BYTES = 64 << 20
MOST_TIMES = 40

GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


def read_text(path: Path, large: bool, findings: Findings) -> bytes:
    """Return the text of a file.

    `large`: whether a gzipped file may unpack to any size.

    Raises `TraceError` if the file holds no text, its gzip is damaged, or it unpacks to more than it may.
    """
    with path.open("rb") as file:
        gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    text = _unpacked(path, large, findings) if gzipped else path.read_bytes()
    if gzipped and path.suffix != ".gz":
        findings[GZIPPED] += 1
    if not gzipped and path.suffix == ".gz":
        findings[NOT_GZIPPED] += 1
    if text.startswith(b"SQLite format 3"):
        raise TraceError(f"{path}: a gzipped SQLite database, expected JSON: gunzip it first")
    if not text or text.isspace():
        raise TraceError(f"{path}: is empty")
    return text


def _unpacked(path: Path, large: bool, findings: Findings) -> bytes:
    """Return what a gzipped file unpacks to, of one that was cut as much as is there."""
    most = max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)
    try:
        try:
            with gzip.open(path) as file:
                text = file.read() if large else file.read(most + 1)
        except EOFError:
            findings[CUT] += 1
            text = _up_to_its_end(path, None if large else most + 1)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: its gzip is damaged: {error}") from error
    if len(text) > most and not large:
        raise TraceError(
            f"{path}: unpacks to more than {MOST_TIMES} times its size, expected about 15: gunzip it yourself, or use "
            "multicard analyze --large, in Python read_trace(..., large=True)"
        )
    return text


def _up_to_its_end(path: Path, most: int | None) -> bytes:
    """Return what a gzipped file that was cut unpacks to, of `most` bytes at most."""
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)  # of gzip's format, see zlib's manual, inflateInit2
    return unpacker.decompress(path.read_bytes(), most or 0)

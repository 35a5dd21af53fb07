"""Read the text of a trace file, which is plain or gzipped, as its first bytes show.

If a gzipped file was cut, the text is what can be unpacked.
"""

import gzip
import zlib
from pathlib import Path

from multicard.core.compressed import GZIP_MAGIC, UnpackLimit, UnpacksTooLarge, read_gzip
from multicard.core.errors import TraceError
from multicard.trace.kineto.findings import CUT, GZIPPED, NOT_GZIPPED, Findings

# A gzipped file may unpack to at most 40 times its size, or 64 MiB if that is more. Real traces unpack to at most 30
# times their size.
LIMIT = UnpackLimit(times=40)


def read_text(path: Path, large: bool, findings: Findings) -> bytes:
    """Return the text of a file, and add to the findings what was out of order in it.

    `large`: if True, a gzipped file may unpack to any size, else to at most `LIMIT`.

    Raises `TraceError` if the file holds no text, its gzip is damaged, or it unpacks to more than it may.
    """
    with path.open("rb") as file:
        is_gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    text = _unpacked(path, large, findings) if is_gzipped else path.read_bytes()
    if is_gzipped and path.suffix != ".gz":
        findings[GZIPPED] += 1
    if not is_gzipped and path.suffix == ".gz":
        findings[NOT_GZIPPED] += 1
    if text.startswith(b"SQLite format 3"):
        raise TraceError(f"{path}: a gzipped SQLite database, expected JSON: gunzip it first")
    if not text or text.isspace():
        raise TraceError(f"{path}: is empty")
    return text


def _unpacked(path: Path, large: bool, findings: Findings) -> bytes:
    try:
        unpacked = read_gzip(path, None if large else LIMIT)
    except UnpacksTooLarge as error:
        raise TraceError(
            f"{path}: unpacks to more than {LIMIT.times} times its size, expected about 15: gunzip it yourself, or use "
            "multicard analyze --large, in Python read_trace(..., large=True)"
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: its gzip is damaged: {error}") from error
    if unpacked.is_cut:
        findings[CUT] += 1
    return unpacked.content

"""Read an archive of recorded runs that may come from anybody: nothing leaves its folder, nothing altered is taken.

No member is extracted by its own name or kind: only names of the manifest's form are known, only plain files are read,
and each must have the size and checksum that the manifest states. The checksums tell damage, not who made the archive.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from multicard.archive.manifest import LONGEST, MANIFEST, MEMBER, Manifest, Member, check_suffix
from multicard.core.errors import UserError
from multicard.core.files import DISK_FULL, parse_json, read_json, report_full_disk
from multicard.core.layout import RUN
from multicard.core.text import printable
from multicard.core.validation import first_fault

GZIP = b"\x1f\x8b"  # how a gzipped file begins: RFC 1952
PIECE_BYTES = 1 << 20
SMALL_BYTES, MOST_TIMES = 64 << 20, 200  # what an archive may unpack to at least, and how many times its size
# How large a manifest may be at least, and how many times the size of its archive: it lists each run in about 3 kB,
# which takes 5 kB of the archive or more, so that this is several times what multicard writes.
SMALL_MANIFEST_BYTES, MANIFEST_TIMES = 1 << 20, 4
DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


class _Bounded:
    """A stream that gives no more than `left` bytes, so that a small file cannot unpack into a large one."""

    def __init__(self, source: IO[bytes], left: int):
        self._source, self._left = source, left

    def read(self, size: int) -> bytes:
        """As a file's, at most a piece."""
        content = self._source.read(min(size, PIECE_BYTES))
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(f"unpacks to more than {MOST_TIMES} times its size")
        return content


def unpack(path: Path, folder: Path, machines: Path | None = None) -> Manifest:
    """Check a whole archive, and write the files of its runs to `folder`/<run>/.

    The limits of machines that are in it are written to the folder `machines`, if any.

    Raises `UserError` if anything in it is missing, altered or not what the manifest lists, or there is no space left.
    `folder` may hold some of its files then.
    """
    with report_full_disk(folder), _opened(path) as (manifest, tar, stream):
        left = {file.name: file for file in manifest.files}
        while (entry := tar.next()) is not None:
            name = printable(entry.name, LONGEST)
            file = left.pop(entry.name, None)
            if file is None:
                raise UserError(f"{path}: {name}: not in the manifest, or there twice")
            if not entry.isreg():
                raise UserError(f"{path}: {name}: a link or a device, expected a plain file")
            if entry.size != file.bytes:
                raise UserError(f"{path}: {name}: found {entry.size} bytes, expected {file.bytes} by the manifest")
            place = MEMBER.fullmatch(file.name)
            target = folder / place["run"] / place["file"] if place["run"] else None
            if place["machine"] and machines:
                target = machines / place["machine"]
            _take(path, tar.extractfile(entry), file, target)
        while stream.read(PIECE_BYTES):  # the checksum of the compressed stream comes last
            pass
        if left:
            raise UserError(f"{path}: {next(iter(left))}: missing, the archive was cut or altered")
    for run in manifest.runs:
        try:
            same = read_json(folder / run / RUN)["run"] == run
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise UserError(f"{path}: runs/{run}/{RUN}: not the record of this run")
    return manifest


def _take(path: Path, content: IO[bytes], file: Member, target: Path | None) -> None:
    """Write a member to `target`, if any, and check its checksum."""
    digest = hashlib.sha256()
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") if target else nullcontext() as written:
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            if written:
                written.write(piece)
    if digest.hexdigest() != file.sha256:
        raise UserError(f"{path}: {file.name}: the checksum is not the manifest's, it was cut or altered")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Manifest, tarfile.TarFile, _Bounded]]:
    """Open an archive: its manifest, the members after it, and the stream; damage becomes one line."""
    check_suffix(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(GZIP)) not in (GZIP, b""):
            raise UserError(f"{path}: not an archive of multicard: found no gzipped file")
    try:
        with gzip.open(path) as packed:
            stream = _Bounded(packed, max(SMALL_BYTES, MOST_TIMES * path.stat().st_size))
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                yield _manifest(path, tar), tar, stream
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        cause = printable(str(error), LONGEST) or type(error).__name__
        raise UserError(f"{path}: cut, damaged or no archive: {cause}") from error


def _manifest(path: Path, tar: tarfile.TarFile) -> Manifest:
    entry = tar.next()
    if entry is None or entry.name != MANIFEST or not entry.isreg():
        raise UserError(f"{path}: {MANIFEST}: missing, expected the first member of an archive made by multicard")
    most = max(SMALL_MANIFEST_BYTES, MANIFEST_TIMES * path.stat().st_size)
    if entry.size > most:  # a file that lists itself a million times would take a minute and a gigabyte to parse
        raise UserError(f"{path}: {MANIFEST}: found {entry.size} bytes, expected at most {most} in such an archive")
    text = tar.extractfile(entry).read()
    try:
        return Manifest.model_validate(parse_json(text))
    except ValidationError as error:
        raise UserError(f"{path}: {MANIFEST}: {printable(first_fault(error), LONGEST)}") from error
    except ValueError as error:
        raise UserError(f"{path}: {MANIFEST}: does not parse as JSON: {printable(str(error), LONGEST)}") from error

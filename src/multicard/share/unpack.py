"""Read an archive of recorded runs that may come from anybody.

Nothing is written outside the given folders, and nothing altered is accepted. A member is accepted only if the manifest
lists it, which allows only names of a fixed form (`MEMBER`), if it is a plain file, and if it has the size and checksum
that the manifest states. Checksums show damage, but not who made the archive.
"""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from multicard.config.read_run import read_run
from multicard.core.compressed import GZIP_MAGIC, UnpackLimit, open_gzip
from multicard.core.errors import UserError
from multicard.core.files import DISK_FULL, parse_json, report_full_disk
from multicard.core.layout import RUN
from multicard.core.text import printable
from multicard.core.validation import first_fault
from multicard.share.manifest import LONGEST, MANIFEST, MEMBER, Manifest, Member, check_suffix

# Files are read and written in pieces of this size.
PIECE_BYTES = 1 << 20
# An archive may unpack to this many times its size.
LIMIT = UnpackLimit(times=200)
# A manifest may have this many times the size of its archive. multicard itself writes about 3 kB for each run, and the
# run takes 5 kB of the archive or more, so the limit is several times what multicard needs.
MANIFEST_LIMIT = UnpackLimit(times=4, always_bytes=1 << 20)
# Errors that reading a damaged archive raises.
DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


def unpack(path: Path, folder: Path, machines: Path | None = None, limit: UnpackLimit = LIMIT) -> Manifest:
    """Check a whole archive, and write the files of its runs to `folder`/<run>/.

    `machines`: the folder to which the limits of machines in the archive are written; None to write none. `limit`: how
    much the archive may unpack to.

    Raises `UserError` if anything in the archive is missing, altered or not listed in the manifest, or there is no
    space left. In this case some of the archive's files may have been written already.
    """
    with report_full_disk(folder), _opened(path, limit) as (manifest, tar, stream):
        missing = {file.name: file for file in manifest.files}
        while (entry := tar.next()) is not None:
            name = printable(entry.name, LONGEST)
            member = missing.pop(entry.name, None)
            if member is None:
                raise UserError(f"{path}: {name}: not in the manifest, or there twice")
            if not entry.isreg():
                raise UserError(f"{path}: {name}: a link or a device, expected a plain file")
            if entry.size != member.bytes:
                raise UserError(f"{path}: {name}: found {entry.size} bytes, expected {member.bytes} by the manifest")
            _write_member(path, _content_of(tar, entry), member, _target(member, folder, machines))
        # The checksum of the gzip stream is at its end, and is compared only if all of the stream is read.
        while stream.read(PIECE_BYTES):
            pass
        if missing:
            raise UserError(f"{path}: {next(iter(missing))}: missing, the archive was cut or altered")
    for run in manifest.runs:
        try:
            record = read_run(folder / run)
        except UserError as error:
            fault = str(error).removeprefix(f"{folder / run / RUN}: ")
            raise UserError(f"{path}: runs/{run}/{RUN}: {fault}") from None
        if record.run != run:
            raise UserError(f"{path}: runs/{run}/{RUN}: run: found {record.run!r}, expected {run!r}")
    return manifest


def _target(member: Member, folder: Path, machines: Path | None) -> Path | None:
    """Return where to write a member; None if it is not to be written, and only its checksum is compared."""
    parts = MEMBER.fullmatch(member.name)
    if parts is None:
        raise ValueError(f"{member.name}: accepted by the manifest, though no member may have such a name")
    if parts["run"]:
        return folder / parts["run"] / parts["file"]
    return machines / parts["machine"] if machines else None


def _content_of(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    if content is None:
        raise tarfile.ReadError(f"{entry.name}: no content")
    return content


def _write_member(path: Path, content: IO[bytes], member: Member, target: Path | None) -> None:
    """Write a member to `target`, unless that is None; raise `UserError` if its checksum is not the manifest's."""
    digest = hashlib.sha256()
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") if target else nullcontext() as file:
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            if file is not None:
                file.write(piece)
    if digest.hexdigest() != member.sha256:
        raise UserError(f"{path}: {member.name}: the checksum is not the manifest's, it was cut or altered")


@contextmanager
def _opened(path: Path, limit: UnpackLimit) -> Iterator[tuple[Manifest, tarfile.TarFile, io.BufferedIOBase]]:
    """Yield the manifest of an archive, the tar file from its second member on, and the uncompressed stream.

    An error of the block that means damage becomes a `UserError`; an error that means a full disk does not.
    """
    check_suffix(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) not in (GZIP_MAGIC, b""):
            raise UserError(f"{path}: not an archive of multicard: found no gzipped file")
    try:
        with open_gzip(path, limit) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _read_manifest(path, tar), tar, stream
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        cause = printable(str(error), LONGEST) or type(error).__name__
        raise UserError(f"{path}: not an archive, or cut or damaged: {cause}") from error


def _read_manifest(path: Path, tar: tarfile.TarFile) -> Manifest:
    """Read the manifest, which must be the first member.

    Raises `UserError` if it is missing, too large or not valid.
    """
    entry = tar.next()
    if entry is None or entry.name != MANIFEST or not entry.isreg():
        raise UserError(f"{path}: {MANIFEST}: missing, expected the first member of an archive made by multicard")
    most = MANIFEST_LIMIT.bytes_for(path)
    # A manifest that lists a file a million times would take a minute and a gigabyte to parse.
    if entry.size > most:
        raise UserError(f"{path}: {MANIFEST}: found {entry.size} bytes, expected at most {most} in such an archive")
    text = _content_of(tar, entry).read()
    try:
        return Manifest.model_validate(parse_json(text))
    except ValidationError as error:
        raise UserError(f"{path}: {MANIFEST}: {printable(first_fault(error), LONGEST)}") from error
    except ValueError as error:
        raise UserError(f"{path}: {MANIFEST}: does not parse as JSON: {printable(str(error), LONGEST)}") from error

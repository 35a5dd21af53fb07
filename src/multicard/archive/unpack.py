"""Read an archive of recorded runs that may come from anybody: nothing leaves its folder, nothing altered is taken.

No member is extracted by its own name or kind: only names of the manifest's form are known, only plain files are read,
never more bytes than the manifest says, and each must have the checksum that stands there. The checksums tell damage,
not who made the archive.
"""

import gzip
import hashlib
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from pydantic import ValidationError

from multicard.archive.manifest import LONGEST, MANIFEST, MEMBER, Manifest, Member, check_suffix
from multicard.core.errors import UserError, first_fault
from multicard.core.files import DISK_FULL, parse_json, read_json, report_full_disk, sha256, write_json
from multicard.core.layout import RUN
from multicard.core.text import printable
from multicard.core.units import BYTES, with_unit

MANIFEST_LIMIT_BYTES = 64 << 20
HEADERS_BYTES = 8192  # at most, of one member of a tar file: a header, and one more for a long name
AROUND_BYTES = 1 << 20  # of a tar file, before the first and after the last member
PIECE_BYTES = 1 << 20
SMALL_BYTES, MOST_TIMES = 64 << 20, 200  # what an archive may unpack to at least, and how many times its size
SCRATCH = ".recorded-"
DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


class _TooMuch(Exception):
    """An archive holds more than its manifest says."""


class _Bounded:
    """A stream that gives no more than `left` bytes, so that a small file cannot unpack into a large one."""

    def __init__(self, source: IO[bytes], left: int):
        self.left = left
        self._source = source

    def read(self, size: int) -> bytes:
        """As a file's."""
        content = self._source.read(min(size, PIECE_BYTES))
        self.left -= len(content)
        if self.left < 0:
            raise _TooMuch
        return content


# A member as it comes, and its content if it is a plain file.
_Entry = tuple[tarfile.TarInfo, IO[bytes] | None]


def read_manifest(path: Path) -> Manifest:
    """Read what an archive holds, without checking that it does.

    Raises
    ------
    UserError
        If it is no archive of recorded runs.
    """
    with _opened(path) as (manifest, _, _):
        return manifest


def unpack(path: Path, folder: Path, runs: Collection[str] | None = None, machines: Path | None = None) -> Manifest:
    """Check a whole archive, and write the files of `runs`, or of all its runs, to `folder`/<run>/.

    The limits of machines that are in it are written to the folder `machines`, if any.

    Raises
    ------
    UserError
        If anything in it is missing, altered or not what the manifest lists. `folder` may hold some of its files then.
    OSError
        If there is no space left for them.
    """
    with _opened(path) as (manifest, entries, place):
        left = {file.name: file for file in manifest.files}
        place.member = next(iter(left), "its end")
        wanted = sum(file.bytes for file in manifest.files)
        most = max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)
        if wanted > most:
            raise UserError(f"{path}: holds {with_unit(wanted, BYTES)}, expected at most {with_unit(most, BYTES)}")
        free = shutil.disk_usage(folder).free
        if wanted > free:
            raise UserError(f"{path}: holds {with_unit(wanted, BYTES)}, {with_unit(free, BYTES)} are free in {folder}")
        for entry, content in entries:
            place.member = printable(entry.name, LONGEST)
            file = left.pop(entry.name, None)
            if file is None:
                raise UserError(f"{path}: {place.member}: not in the manifest, or there twice")
            if content is None:
                raise UserError(f"{path}: {place.member}: a link or a device, expected a plain file")
            if entry.size != file.bytes:
                raise UserError(f"{path}: {file.name}: found {entry.size} bytes, expected {file.bytes} by the manifest")
            where = MEMBER.fullmatch(file.name)
            if where["machine"]:
                target = machines / where["machine"] if machines else None
            else:
                target = folder / where["run"] / where["file"] if runs is None or where["run"] in runs else None
            _take(path, content, file, target)
            place.member = next(iter(left), "its end")
        if left:
            raise UserError(f"{path}: {next(iter(left))}: missing, the archive was cut or altered")
    return manifest


def place_runs(path: Path, folder: Path, runs: Collection[str], machines: Path | None = None) -> None:
    """Put runs of an archive into the folder of run directories, each whole, its record naming the archive.

    The limits of machines that are in it are written to the empty folder `machines`, if any.

    Raises
    ------
    UserError
        As `unpack`, if there is no space left, or if there is a run of this machine in the place of one; nothing is
        changed then.
    """
    with report_full_disk(folder), _scratch(folder) as scratch:
        manifest = unpack(path, scratch, runs, machines)
        known = {run.run: run for run in manifest.runs}
        origin = {"archive": path.name, "sha256": sha256(path)}
        for run in runs:
            if run not in known:
                raise UserError(f"{path}: holds no run {printable(run, LONGEST)}")
            if is_own(folder / run):
                raise UserError(f"{folder / run}: holds a run of this machine, which is kept; remove it by hand")
            record = _record(path, scratch / run, known[run].parameters)
            write_json(scratch / run / RUN, record | {"recorded": origin})
        for run in runs:
            target = folder / run
            (target / RUN).unlink(missing_ok=True)  # first: without it nothing else counts
            shutil.rmtree(target, ignore_errors=True)
            (scratch / run).replace(target)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder in `folder` while the block runs; those that were left there by a process that was killed go first."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def is_own(folder: Path) -> bool:
    """Whether a run directory is whole and was not unpacked from an archive."""
    try:
        return not read_json(folder / RUN).get("recorded")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True  # whatever it is, multicard did not unpack it


def _record(path: Path, folder: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """The record of an unpacked run, if it is the one that the manifest lists."""
    try:
        record = read_json(folder / RUN)
        same = record["run"] == folder.name and record["parameters"] == parameters
    except (ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise UserError(f"{path}: runs/{folder.name}/{RUN}: not the record of the run that the manifest lists")
    return record


def _take(path: Path, content: IO[bytes], file: Member, target: Path | None) -> None:
    """Read a member, checking its checksum; write it to `target`, if any."""
    digest, left = hashlib.sha256(), file.bytes
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") if target else nullcontext() as written:
        while piece := content.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise _TooMuch
            digest.update(piece)
            if written:
                written.write(piece)
    if left or digest.hexdigest() != file.sha256:
        raise UserError(f"{path}: {file.name}: the checksum is not the manifest's, it was cut or altered")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Manifest, Iterator[_Entry], SimpleNamespace]]:
    """Open an archive: its manifest, the members after it, and the `member` that is read, for messages.

    Damage becomes one line.
    """
    check_suffix(path)
    place = SimpleNamespace(member=MANIFEST)
    try:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        with gzip.open(path) as packed:
            bounded = _Bounded(packed, MANIFEST_LIMIT_BYTES + AROUND_BYTES)
            with tarfile.open(fileobj=bounded, mode="r|") as tar:
                entries = _entries(tar)
                manifest = _manifest(path, *next(entries, (None, None)))
                bounded.left = sum(file.bytes + HEADERS_BYTES for file in manifest.files) + AROUND_BYTES
                yield manifest, _to_the_end(entries, bounded), place
    except _TooMuch:
        raise UserError(f"{path}: {place.member}: larger than the manifest says") from None
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:  # that it is unpacked to
            raise
        if isinstance(error, OSError) and error.errno:  # of a disk, not of what is on it
            raise UserError(f"{path}: {place.member}: cannot be unpacked: {error.strerror}") from error
        cause = printable(str(error), LONGEST) or type(error).__name__
        raise UserError(f"{path}: {place.member}: cut, damaged or no archive: {cause}") from error


def _entries(tar: tarfile.TarFile) -> Iterator[_Entry]:
    while (member := tar.next()) is not None:
        tar.members = []  # of a stream they are of no more use
        yield member, tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None


def _to_the_end(entries: Iterator[_Entry], packed: _Bounded) -> Iterator[_Entry]:
    """The members, then whatever follows: the checksum of the compressed stream comes last."""
    yield from entries
    while packed.read(PIECE_BYTES):
        pass


def _manifest(path: Path, entry: tarfile.TarInfo | None, content: IO[bytes] | None) -> Manifest:
    if entry is None or entry.name != MANIFEST or content is None:
        raise UserError(f"{path}: {MANIFEST}: missing, expected the first member of an archive made by multicard")
    if entry.size > MANIFEST_LIMIT_BYTES:
        raise UserError(f"{path}: {MANIFEST}: found {entry.size} bytes, expected at most {MANIFEST_LIMIT_BYTES}")
    text = content.read(MANIFEST_LIMIT_BYTES + 1)
    if len(text) < entry.size:
        raise EOFError("it ends too early")
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path}: {MANIFEST}: does not parse as JSON: {error}") from error
    try:
        return Manifest.model_validate(found)
    except ValidationError as error:
        raise UserError(f"{path}: {MANIFEST}: {printable(first_fault(error), LONGEST)}") from error

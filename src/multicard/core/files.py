"""Write files so that they appear complete or not at all; read JSON; report full disks; compute checksums."""

import csv
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from multicard.core.errors import UserError

MOST_DEPTH = 100  # JSON with more levels of nested lists and objects is refused
PROBE_BYTES = 1 << 20  # a disk counts as full if a file of so many bytes cannot be written
# Errors that say that a disk or a quota is full, or that a file has reached its size limit.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# For each error with which writing a file fails: what a user can do about it.
REMEDIES = {
    **dict.fromkeys(DISK_FULL, "free space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make its folder writable, or choose another one,"),
    errno.ENAMETOOLONG: "choose a shorter path",
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN), "check the file system"),
}


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """If the block fails because a disk is full, raise a `UserError` that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise _not_written(path, error.errno) from error


@contextmanager
def report_unwritable(path: Path) -> Iterator[None]:
    """If the block cannot write `path`, or a file in or beside it, raise a `UserError` that names the file.

    A full disk counts as an error of `path`, because the block must not write anything else. Another `OSError` is
    raised again unchanged if it is not in `REMEDIES`, or if it names a file elsewhere, which the block reads.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _not_written(path, error.errno) from error
        failed = Path(error.filename) if isinstance(error.filename, str) else path
        if error.errno not in REMEDIES or not failed.absolute().is_relative_to(path.absolute().parent):
            raise
        raise _not_written(failed, error.errno) from error


def _not_written(path: Path, code: int) -> UserError:
    return UserError(f"{path}: cannot be written: {os.strerror(code)}; {REMEDIES[code]} and start again")


def mentions_full_disk(text: str) -> bool:
    """Return whether a message has the system's text for a full disk, a full quota or a file at its size limit."""
    return any(os.strerror(code) in text for code in DISK_FULL)


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder, or the user's quota there, has no space for `PROBE_BYTES` more.

    False if the folder cannot be written for another reason, such as missing permission.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # The bytes are random, because a file system may compress others.
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in DISK_FULL
    return False


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path` to write to. If the block succeeds, the file is renamed to `path`.

    If it fails, the temporary file is removed. Its name has the suffix of `path`, since some writers choose the format
    by the suffix.

    Raises `UserError` if the file cannot be written, as on a full disk.
    """
    with report_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    # mkstemp makes files that only the user can read. Results get the permissions of any other new file.
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    try:
        with report_unwritable(path):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV under a header; None becomes an empty cell."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises `ValueError` if the text is not JSON, or has more than `MOST_DEPTH` nested levels, so that recursive
    functions can walk the returned value.
    """
    too_deep = ValueError(f"nested too deeply, expected {MOST_DEPTH} levels at most")
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        containers = [entry for entry in level if isinstance(entry, dict | list)]
        if not containers:
            return value
        level = []
        for container in containers:
            level += container.values() if isinstance(container, dict) else container
    raise too_deep


def read_json(path: Path) -> Any:
    """Read a JSON file; see `parse_json`."""
    return parse_json(path.read_text(encoding="utf-8"))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises `UserError` if the file is missing, cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        value = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: does not parse as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: found {type(value).__name__}, expected an object")
    return value


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class FileChecksum(TypedDict):
    """A file, in the form in which manifests of data and traces list files."""

    name: str
    bytes: int  # its size
    sha256: str  # its hexadecimal digest


def described(path: Path) -> FileChecksum:
    """Return name, size and checksum of a file."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def exists(path: Path) -> bool:
    """Return whether a path exists; raise an `OSError` if its name is too long, or if a folder above may not be read.

    From Python 3.14 on, `Path.exists` returns False in these cases, and a message could not name the cause.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False
    except ValueError:  # a NUL character, which no name has
        return False
    return True


def unwritable(folder: Path) -> str | None:
    """Return why files cannot be made in `folder`; None if they can.

    If the folder does not exist, the nearest folder above it that exists is tried.
    """
    folder = folder.absolute()
    try:
        while not exists(folder):
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is not a folder"
        with tempfile.TemporaryDirectory(dir=folder):
            return None
    except FileNotFoundError:
        # A folder such as /proc exists, but making a folder in it fails with this error.
        return f"{folder}: not writable"
    except OSError as error:
        return f"{folder}: {error.strerror}"

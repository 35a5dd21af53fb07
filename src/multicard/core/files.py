"""Files that appear complete or not at all, and their checksums."""

import csv
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError

MOST_DEPTH = 100  # nested lists and objects of JSON
PROBE_BYTES = 1 << 20
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What a user can do about a file that cannot be written, by the number of the error.
REMEDIES = {
    **dict.fromkeys(DISK_FULL, "free space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make its folder writable, or choose another one,"),
    errno.ENAMETOOLONG: "choose a shorter path",
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN), "check the file system"),
}


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Raise a `UserError` that names `path` if the block fails for want of disk space."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise _not_written(path, error.errno) from error


@contextmanager
def report_unwritable(path: Path) -> Iterator[None]:
    """Raise a `UserError` that names the file if the block cannot write `path`, or a file in or beside it.

    The block writes nothing else. An error that names another file, which it may read, stays as it is.
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
    """Return whether a message says that a disk, a quota or a file is full."""
    return any(os.strerror(code) in text for code in DISK_FULL)


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder, or the user's quota there, has no space for another `PROBE_BYTES`."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # No file system compresses random bytes.
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in DISK_FULL
    return False


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it becomes `path` only when the block succeeds.

    The temporary name keeps the suffix of `path`, since some writers choose the format by it.

    Raises `UserError` if the file cannot be written, such as on a full disk.
    """
    with report_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    # mkstemp makes files private; results are shared like any other file.
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

    Raises `ValueError` if the text is not JSON, or nested more than `MOST_DEPTH` deep: recursive functions may walk
    what this returns.
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

    Raises `UserError` if it is missing, does not parse, or holds anything else.
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


def described(path: Path) -> dict[str, Any]:
    """Return name, size and checksum of a file, as the manifests of data and traces list it."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def unwritable(folder: Path) -> str | None:
    """Return why files cannot be made in `folder`, which need not exist yet; None if they can."""
    folder = folder.absolute()
    try:
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is not a folder"
        with tempfile.TemporaryDirectory(dir=folder):
            return None
    except FileNotFoundError:
        # /proc exists and accepts no new folders.
        return f"{folder}: not writable"
    except OSError as error:
        return f"{folder}: {error.strerror}"

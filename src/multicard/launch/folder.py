"""The folder of a user's script: which version of it ran, and what a run changed in it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multicard.core.files import sha256
from multicard.core.system import ask, read_or_none

MOST_FILES = 100_000  # that are looked at
MOST_NAMES = 20  # that are listed
# What Python, git and Snakemake keep for themselves.
NOT_THE_SCRIPTS = ("__pycache__", ".git", ".snakemake")


class ScriptFolder:
    """A folder and the script in it before a run, to be compared with what they are after it.

    Parameters
    ----------
    folder
        The script's.
    script
        Its file, if that is known.
    run
        The run directory, `<results>/runs/<run>`. If the results lie in the folder, they are left out.
    """

    def __init__(self, folder: Path, script: Path | None, run: Path):
        self._folder, self._results = folder.absolute(), str(run.absolute().parents[1])
        self._version = _version(script, folder)
        self._before = self._files()

    def record(self) -> dict[str, Any]:
        """For run.json: `script`, its version before the run, and `folder_changes`.

        These are names of files that appeared, changed or disappeared, at most `MOST_NAMES`, and their count; None
        where the folder has more than `MOST_FILES` files.
        """
        return {"script": self._version, "folder_changes": self._changes()}

    def _changes(self) -> dict[str, Any] | None:
        before, now = self._before, self._files()
        if before is None or now is None:
            return None
        changed = sorted(name for name in before | now if before.get(name) != now.get(name))
        return {"count": len(changed), "names": changed[:MOST_NAMES]}

    def _files(self) -> dict[str, tuple[int, int, int]] | None:
        found = {}
        for entry in self._walk(self._folder):
            if len(found) == MOST_FILES:
                return None
            state = read_or_none(lambda entry=entry: entry.stat(follow_symlinks=False))
            if state:
                found[os.path.relpath(entry.path, self._folder)] = (state.st_ino, state.st_size, state.st_mtime_ns)
        return found

    def _walk(self, folder: Path | str) -> Iterator[os.DirEntry[str]]:
        for entry in read_or_none(lambda: list(os.scandir(folder))) or ():
            if entry.name in NOT_THE_SCRIPTS or entry.path == self._results:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(entry.path)
            else:
                yield entry


def _version(script: Path | None, folder: Path) -> dict[str, Any]:
    """Checksum of the script's file, and commit of the git repository that its folder is in; None of what is not there.

    `modified`: whether files that git tracks in the folder differ from the commit.
    """
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    commit = ask([*git, "rev-parse", "HEAD"])
    state = ask([*git, "status", "--porcelain", "--untracked-files=no", "--", "."])
    known = commit.problem is None
    return {
        "file": script and script.name,
        "sha256": script and read_or_none(lambda: sha256(script)),
        "commit": commit.output.strip() if known else None,
        "modified": bool(state.lines) if known and state.problem is None else None,
    }

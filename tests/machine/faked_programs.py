"""Fakes: shell scripts that stand for tools of a GPU node or a cluster, which cannot run on a machine for tests.

Their outputs are written after the tools' documents and after outputs that people have published; only those of Slurm
without GPUs' types and without accounting, and those of nsys, were seen here.
"""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Fake = Callable[[str, str], None]

HANG = "sleep 600 & wait"  # as a tool whose own child hangs, and holds its output open
GARBAGE = r"printf '\377\000\033[31m| | |%%\n{}[]'; head -c 3000 /dev/zero; printf '\ngpu|up|many|gpu:\n'"


def sinfo(rows: list[str], version: str = "slurm 24.05.4") -> str:
    """Script of a sinfo that lists partitions, each `name|state|nodes|gres`, maybe with `|node state`."""
    rows = [row if row.count("|") > 3 else f"{row}|idle" for row in rows]
    names = "\n".join(row.partition("|")[0] for row in rows)
    return (
        f'case "$*" in *--version*) echo {shlex.quote(version)} ;; *%R\\|*) echo {shlex.quote(chr(10).join(rows))} ;;\n'
        f"*) echo {shlex.quote(names)} ;; esac"
    )


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n# A fake of {name}.\n{script}\n")
    path.chmod(0o755)


def place(folder: Path, monkeypatch: pytest.MonkeyPatch, *hidden: str) -> Fake:
    """Put `folder` first on the PATH, and hide the tools named where they are on it elsewhere."""
    kept = [p for p in os.environ["PATH"].split(os.pathsep) if not any((Path(p) / name).exists() for name in hidden)]
    # What stands beside a hidden tool, tests may need.
    for name in ("sh", "bash", "sleep", "head"):
        if not any((Path(p) / name).exists() for p in [folder, *kept]):
            (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), *kept]))
    return lambda name, script: put(folder, name, script)

"""The GPU check in pieces, for GPUs that can be had for minutes only: each call continues from what was saved."""

import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

ENDING_S = 60.0  # for ending what runs, judging and saving
STOPPING_S = 40.0  # of these: twice as long as the launcher gives a job to end, and more
PART_BYTES = 15 << 20  # of a file that is saved
SAVED = "saved-*.part"
CAPTURED = ("captured.json", "exported.json")  # of a trace: what it was; the tables that were made of it are beside it


class Deadline:
    """When the call has to end; `left_s` is None where it may take any time."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes - ENDING_S

    @property
    def left_s(self) -> float | None:
        """Seconds until then, 0 where it is over."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def run(self, command: Sequence[str | Path], folder: Path) -> int | None:
        """Exit code of a command; None of one that was ended, or not begun, because the time is up."""
        if self.left_s == 0:
            return None
        with subprocess.Popen(command, cwd=folder, start_new_session=True) as process:
            try:
                return process.wait(self.left_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)  # on which Snakemake ends its jobs, and keeps what they made
                try:
                    process.wait(STOPPING_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)  # what it started would disturb the next call
                return None


def save(results: Path, folder: Path) -> None:
    """Keep all runs in files of `PART_BYTES`, without raw traces of which tables were made."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for run in sorted(results.glob("runs/*")):
            if (run / "run.json").exists():
                was_read = (run / "activity" / "tables.json").exists()
                archive.add(run, run.relative_to(results), filter=_without_traces if was_read else None)
    for old in folder.glob(SAVED):
        old.unlink()
    content = packed.getbuffer()
    for number, at in enumerate(range(0, len(content), PART_BYTES)):
        (folder / SAVED.replace("*", str(number))).write_bytes(content[at : at + PART_BYTES])


def restore(folder: Path, results: Path) -> None:
    """Take up what another call saved; runs that are there stay as they are."""
    parts = sorted(folder.glob(SAVED), key=lambda part: int(part.stem.partition("-")[2]))
    if not parts:
        return
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts)), mode="r:gz") as archive:
        there = {path.name for path in results.glob("runs/*")}
        for member in archive:
            if Path(member.name).parts[1] not in there:
                archive.extract(member, results, filter="data")


def _without_traces(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = Path(member.name)
    return None if path.parent.name == "trace" and path.name not in CAPTURED else member

"""Take samples of the state of a node while a job runs there, and read them afterwards."""

import contextlib
import csv
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from multicard.core.values import Row

# Seconds that the job is held up at most by the first sample, and again by the last: a driver may hang.
LIMIT_S = 5.0

# Windows of time, each a pair of start and end by `time.monotonic`.
Windows = Sequence[Sequence[float]]
# For each sample its rows, where a column may be missing, and the seconds until the next sample is due.
Samples = Iterator[tuple[list[Row], float]]


@contextlib.contextmanager
def sampling(file: Path, columns: Sequence[str], samples: Samples) -> Iterator[None]:
    """Write samples to a CSV file, in a thread: the first before the block runs, more meanwhile, the last after it.

    A sample that takes longer than `LIMIT_S` is not waited for. A file that cannot be written is no error here.
    """
    has_begun = threading.Event()
    is_over = threading.Event()

    def write() -> None:
        # On a full disk the job fails as well, and its own error names the disk.
        with contextlib.suppress(OSError), file.open("w", newline="", encoding="utf-8") as sink:
            writer = csv.DictWriter(sink, columns)
            writer.writeheader()
            is_last = False
            for rows, period_s in samples:
                writer.writerows(rows)
                has_begun.set()
                if is_last:
                    break
                is_last = is_over.wait(period_s)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    has_begun.wait(LIMIT_S)
    try:
        yield
    finally:
        is_over.set()
        thread.join(LIMIT_S)


def complete_lines(file: Path) -> str:
    """Return the lines that `sampling` wrote, without a last one that is incomplete; empty without the file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return text[: text.rfind("\n") + 1]

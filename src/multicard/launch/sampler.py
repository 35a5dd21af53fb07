"""Sampling the state of a node while a job runs there."""

import contextlib
import csv
import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.core.tables import parse_csv

# The first sample, and the last one, may take so long: a driver may hang.
LIMIT_S = 5.0

# Start and end of each of several windows of time, by `time.monotonic`.
Windows = Sequence[Sequence[float]]
# A row of a CSV file by column; what is missing or None is empty there.
Row = dict[str, Any]
# The rows of each sample, and the seconds until the next sample is to be taken.
Samples = Iterator[tuple[list[Row], float]]


@contextlib.contextmanager
def sampling(file: Path, columns: Sequence[str], samples: Samples) -> Iterator[None]:
    """Write samples to a CSV file while the block runs, in a thread: the first before the job, the last after it."""
    has_begun = threading.Event()
    is_over = threading.Event()

    def write() -> None:
        # On a full disk the job fails by itself, and explains why.
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


def read_samples(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return what `sampling` wrote, without a last line that was cut; an empty table where there is no such file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    complete = text[: text.rfind("\n") + 1]
    if not complete:
        return pd.DataFrame(columns=list(columns))
    return parse_csv(io.StringIO(complete), dtype={"gpu": str, "problem": str})

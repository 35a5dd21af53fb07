"""Sampling the state of a node while a job runs there."""

import contextlib
import csv
import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

LAST_S = 5.0  # that the first sample, and the last one, may take

Windows = Sequence[Sequence[float]]  # start and end of each, by `time.monotonic`


Samples = Iterator[tuple[list[dict[str, Any]], float]]  # rows of each, and the seconds until the next one is taken


@contextlib.contextmanager
def sampling(file: Path, columns: Sequence[str], samples: Samples) -> Iterator[None]:
    """Write samples to a CSV file while the block runs, in a thread: the first before the job, the last after it."""
    begun, ended = threading.Event(), threading.Event()

    def write() -> None:
        # On a full disk the job fails, and says so, by itself.
        with contextlib.suppress(OSError), file.open("w", newline="", encoding="utf-8") as sink:
            writer = csv.DictWriter(sink, columns)
            writer.writeheader()
            is_last = False
            for rows, period_s in samples:
                writer.writerows(rows)
                begun.set()
                if is_last:
                    break
                is_last = ended.wait(period_s)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    begun.wait(LAST_S)
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_S)  # a driver may hang


def read_samples(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What was written, without a last line that was cut; an empty table where there is no such file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    complete = text[: text.rfind("\n") + 1]
    if not complete:
        return pd.DataFrame(columns=list(columns))
    return pd.read_csv(io.StringIO(complete), dtype={"gpu": str, "problem": str})

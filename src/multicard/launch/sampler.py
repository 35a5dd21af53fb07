"""Sampling the state of a node while a job runs there."""

import contextlib
import csv
import io
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

LAST_S = 5.0  # that the first sample, and the last one, may take

Windows = Sequence[Sequence[float]]  # start and end of each, by `time.monotonic`


class Sampler:
    """Writes samples to a CSV file while its block runs, in a thread: the first before the job, the last after it.

    A subclass says which `columns` they have, how long to wait between them (`period_s`), and what they are (`rows`).
    """

    columns: tuple[str, ...]
    period_s: float

    def __init__(self, file: Path):
        self._file, self._ended, self._begun = file, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        self._begun.wait(LAST_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(LAST_S)  # a driver may hang

    def rows(self, is_last: bool) -> Iterable[dict[str, Any]]:
        """Give one sample."""
        raise NotImplementedError

    def begin(self) -> Iterable[dict[str, Any]]:
        """Prepare sampling in its thread; give rows that come before all samples."""
        return ()

    def _sample(self) -> None:
        # On a full disk the job fails, and says so, by itself.
        with contextlib.suppress(OSError), self._file.open("w", newline="", encoding="utf-8") as sink:
            writer = csv.DictWriter(sink, self.columns)
            writer.writeheader()
            writer.writerows(self.begin())
            writer.writerows(self.rows(is_last=False))
            self._begun.set()
            is_last = False
            while not is_last:
                is_last = self._ended.wait(self.period_s)
                writer.writerows(self.rows(is_last))


def read_samples(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """What a sampler wrote, without a last line that was cut; an empty table where there is no such file."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    complete = text[: text.rfind("\n") + 1]
    if not complete:
        return pd.DataFrame(columns=list(columns))
    return pd.read_csv(io.StringIO(complete), dtype={"gpu": str, "problem": str})

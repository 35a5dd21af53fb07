"""Read a trace as tables and figures."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import for_csv, printable
from multicard.core.values import Row
from multicard.trace.files import open_capture
from multicard.trace.find_steps import find_steps as find_steps_of
from multicard.trace.find_steps import with_steps
from multicard.trace.model import Trace
from multicard.trace.summary import summarized
from multicard.trace.tables import ACTIVITIES, CAPTURE, SCOPES, STEP, STEPS, ActivityTables, activity_tables

if TYPE_CHECKING:  # a second to import, which the command line saves
    import pandas as pd
    from matplotlib.figure import Figure

    from multicard.answers.bottlenecks.of_capture import Answer
    from multicard.results.step_periods import StepTime


TIMELINE_FIGURE = "timeline.png"


class NotRecorded(UserError):
    """Raised for a table or figure that the trace has no events for; the message says which events are missing."""


def read_trace(
    path: str | Path | Sequence[str | Path],
    *,
    tables: Collection[str] | None = None,
    scope: str = CAPTURE,
    find_steps: bool = False,
    large: bool = False,
) -> "TraceAnalysis":
    """Read a trace of Nsight Systems or of PyTorch's profiler and compute its activity tables.

    Parameters
    ----------
    path
        A `.sqlite`, `.json` or `.json.gz` file, or a `.nsys-rep` or `.qdrep` file, which needs the program `nsys`. Or
        several files or a folder of them, one per node or rank of the same job.
    tables
        Names of the tables to compute; None for all. Fewer tables take less time.
    scope
        `capture`: everything recorded. `steps`: what the host did from the start of the first step to the end of the
        last step, and what ran on devices and was launched in that time. If the trace shows no steps, everything.
    find_steps
        True to infer steps from other ranges, from PyTorch's optimizers or from the optimizers' kernels, if no range is
        named `step`.
    large
        True to read a gzipped file even if it unpacks to more than 40 times its size, as few traces do.

    Raises `UserError` if there is no trace, if it cannot be read, or if no table or scope has a given name.

    Examples
    --------
    >>> import multicard
    >>> trace = multicard.read_trace("report.sqlite")  # doctest: +SKIP
    >>> trace.kernels.nlargest(5, "total_s")[["kernel", "calls", "total_s"]]  # doctest: +SKIP
    >>> trace.figure()  # doctest: +SKIP
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(part) for part in path]
    _check_request(paths, tables, scope)
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    traces = open_capture(paths, Path(scratch.name), large)
    activity = activity_tables(traces, tables, scope)
    if find_steps and not _has_marked_steps(activity):
        found_steps = find_steps_of(traces)
        notices = found_steps.notices
        if found_steps.steps:
            traces = with_steps(traces, found_steps.steps)
            activity = activity_tables(traces, tables, scope)
            notices = (*notices, f"steps from {found_steps.source}")
        activity = activity._replace(notices=(*activity.notices, *notices))
    return TraceAnalysis(paths, activity, traces, scratch, scope)


def _check_request(paths: Sequence[Path], tables: Collection[str] | None, scope: str) -> None:
    """Raise `UserError` if there is no path, or if no table or scope has a given name."""
    if not paths:
        raise UserError("no path of a trace, expected at least one")
    unknown = sorted(set(tables or ()) - set(ACTIVITIES))
    if unknown:
        raise UserError(f"no table {unknown[0]}, expected some of {', '.join(ACTIVITIES)}")
    if scope not in SCOPES:
        raise UserError(f"no scope {scope}, expected {' or '.join(SCOPES)}")


def _has_marked_steps(activity: ActivityTables) -> bool:
    """True if the tables `phases` or `timeline` show steps, because the program marked ranges named `step`."""
    rows = [*activity.rows.get("phases", []), *activity.rows.get("timeline", [])]
    return any((row.get("phase") or row["scope"]) == STEP for row in rows)


def table_files(folder: Path, tables: Collection[str]) -> list[Path]:
    """Return the files to which `TraceAnalysis.save` writes some tables, and its figure, if they are recorded."""
    files: list[Path] = []
    for name in tables:
        files += [folder / f"{name}.parquet", folder / f"{name}.csv"]
    return [*files, folder / TIMELINE_FIGURE] if "timeline" in tables else files


class TraceAnalysis:
    """The activity tables of a trace. `read_trace` returns it.

    Each table is a pandas DataFrame whose first columns are `report`, `rank` and `process`: an attribute
    (`.kernels`), an item (`["kernels"]`) and a value of `.tables`. The names of columns state units:
    `_s` seconds, `_bytes` bytes. What was not recorded is `<NA>` or NaN, never 0. Asking for a table that the trace has
    no events for raises `NotRecorded`, whose message says why.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        tables: ActivityTables,
        traces: list[Trace],
        scratch: tempfile.TemporaryDirectory[str],
        scope: str,
    ) -> None:
        # The file or folder; if there are several, the first.
        self.path = paths[0]
        self.paths = tuple(paths)
        # What the tables are about, the argument of `read_trace`: `capture` or `steps`.
        self.scope = scope
        # For each table that was not recorded, the reason.
        self.absent: Mapping[str, str] = MappingProxyType(tables.absent)
        # Lines about what was corrected in the capture.
        self.notices = tables.notices
        # Lines about what is missing from the capture, so that the tables may be wrong.
        self.warnings = tables.warnings
        self._activity = tables
        self._traces = traces
        # The temporary folder of exported reports, which is removed together with this object.
        self._scratch = scratch
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def tables(self) -> "dict[str, pd.DataFrame]":
        """The tables that were recorded, by name."""
        return {name: self[name] for name in self.names}

    def rows(self, name: str) -> list[Row]:
        """Return the rows of one table as Python values, with None for what was not recorded.

        Raises `NotRecorded` if the trace has no events for the table, and `UserError` if the table was not computed or
        no table has that name.
        """
        if name in self.absent:
            raise NotRecorded(f"{self.path}: {name}: cannot tell: {self.absent[name]}")
        if name not in self._activity.rows:
            raise UserError(f"{self.path}: no table {name}, expected one of {', '.join(self.names)}")
        return self._activity.rows[name]

    def summary(self, name: str) -> list[Row]:
        """Return `rows` in short, the largest `total_s` first: `phases` and `timeline` have means over steps."""
        return summarized(name, self.rows(name))

    @property
    def names(self) -> list[str]:
        """Names of the tables that were recorded."""
        return list(self._activity.rows)

    def __getitem__(self, name: str) -> "pd.DataFrame":
        if name not in self._frames:
            import pandas as pd

            self.rows(name)
            table = self._activity.table(name)
            self._frames[name] = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getattr__(self, name: str) -> "pd.DataFrame":
        if name not in ACTIVITIES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]

    def answer(self) -> "Answer":
        """Return where the time goes: a sentence, the parts of a step or of the capture, and what took longest."""
        from multicard.answers.bottlenecks.of_capture import answer

        return answer(self._activity)

    def figure(self) -> "Figure":
        """Draw where each device's time goes, over the capture or all steps, and per step.

        Raises `NotRecorded` if the trace has no timeline or no kernels.
        """
        from multicard.api.display import unmanaged
        from multicard.figures.style import styled
        from multicard.figures.timeline import timeline

        rows = self.rows("timeline")
        if not self._shows_devices():
            raise NotRecorded(f"{self.path}: timeline: cannot tell: the capture holds no kernels")
        with styled():
            return unmanaged(timeline(rows))

    def compare(self, other: "TraceAnalysis") -> "pd.DataFrame":
        """Compare the steps with those of another trace: first how long a step takes, then what differs, largest first.

        Returns
        -------
        pandas.DataFrame
            Columns `table`, `name`, `a_s` (this trace), `b_s` (the other trace), `difference_s` (b minus a), `ratio` (b
            divided by a) with its 95% interval from `low` to `high`, `a_calls` and `b_calls`.

            - If both traces show steps, seconds and calls are `per step`, else of the `whole capture`.
            - The first row is `step time`: the time from the start of one step to the start of the next, mean over
              steps and devices. Only this row has an interval, which covers what varies within the captures. If a trace
              shows no steps, the first row is `span` instead: the time from a device's first activity to its last. This
              row is missing if a trace recorded no devices.
            - Rows of the table `timeline` count every moment of a device once.
            - Rows of other tables are summed durations, mean over processes. Durations that overlap are all counted.
            - Host calls that wait for a device come last.

            The `attrs` of the table: `basis` is `per step` or `whole capture`. By side, `a` or `b`, `step_times` has
            the `StepTime` of a side that shows steps, `periods` the seconds from the start of each step to the start of
            the next, `outlying` the numbers, from 1, of steps that took far longer, and `gpus` the kinds of GPUs, empty
            unless these differ.
        """
        import pandas as pd

        from multicard.answers.comparison.trace_comparison import COLUMNS, compare_captures, differing_gpus
        from multicard.results.step_periods import long_steps, step_time

        sides = {"a": self, "b": other}
        tables = {side: trace._compared_tables(STEPS) for side, trace in sides.items()}
        step_times: dict[str, StepTime] = {}
        for side in sides:
            time = step_time(tables[side])
            if time is not None:
                step_times[side] = time
        if len(step_times) < len(sides):
            # Both are compared over their whole captures. The tables of a side without steps are of the whole capture
            # already.
            for side in step_times:
                tables[side] = sides[side]._compared_tables(CAPTURE)
        rows, basis = compare_captures(tables["a"], tables["b"])
        comparison = pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
        periods: dict[str, list[float]] = {side: [] for side in sides}
        outlying: dict[str, list[int]] = {side: [] for side in sides}
        for side, time in step_times.items():
            periods[side] = list(time.periods_s)
            outlying[side] = long_steps(time)
        gpus = differing_gpus(self._gpus(), other._gpus())
        comparison.attrs["basis"] = basis
        comparison.attrs["step_times"] = step_times
        comparison.attrs["periods"] = periods
        comparison.attrs["outlying"] = outlying
        comparison.attrs["gpus"] = dict(zip(sides, gpus, strict=True)) if gpus else {}
        return comparison

    def _compared_tables(self, scope: str) -> ActivityTables:
        """Return the tables that a comparison needs, computed for a scope."""
        from multicard.answers.comparison.trace_comparison import COMPARED

        computed = {*self._activity.rows, *self._activity.absent}
        if self.scope == scope and computed.issuperset(COMPARED):
            return self._activity
        return activity_tables(self._traces, COMPARED, scope=scope)

    def _gpus(self) -> tuple[str, ...]:
        return tuple(name for trace in self._traces for name in trace.gpus)

    def save(self, folder: str | Path) -> list[Path]:
        """Write each recorded table as Parquet and CSV, and a figure of the timeline if a device was at work.

        Return the paths of the files.
        """
        import pyarrow.csv
        import pyarrow.parquet

        folder = Path(folder)
        written = []
        for name in self.names:
            table = self._activity.table(name)
            parquet, csv = folder / f"{name}.parquet", folder / f"{name}.csv"
            with atomic_write(parquet) as temporary:
                pyarrow.parquet.write_table(table, temporary)
            with atomic_write(csv) as temporary:
                pyarrow.csv.write_csv(_for_people(table), temporary)
            written += [parquet, csv]
        if self._shows_devices():
            from multicard.figures.timeline import draw_timeline

            figure = folder / TIMELINE_FIGURE
            draw_timeline(self.rows("timeline"), figure)
            written.append(figure)
        return written

    def _shows_devices(self) -> bool:
        return any(row["busy_s"] is not None for row in self._activity.rows.get("timeline", []))

    def write_perfetto(self, out: str | Path) -> None:
        """Write the events for ui.perfetto.dev, as Chrome JSON trace events; gzipped if `out` ends in `.gz`."""
        from multicard.trace.perfetto import write_perfetto

        try:
            write_perfetto(self._traces, Path(out))
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"<trace {self.path}: {len(self._activity.rows)} tables, {len(self.absent)} not recorded>"

    def _repr_html_(self) -> str:
        import pandas as pd

        from multicard.api.display import titled

        columns = ["table", "rows", "description"]
        contents: list[tuple[str, object, str]] = []
        for name, activity in ACTIVITIES.items():
            if name in self._activity.rows:
                contents.append((name, len(self._activity.rows[name]), activity.description))
        for name, reason in self.absent.items():
            contents.append((name, "", f"cannot tell: {reason}"))
        return titled(f"Trace {self.path}", pd.DataFrame(contents, columns=columns))


def _for_people(table: pa.Table) -> pa.Table:
    """Return a table whose text is safe to show in a terminal and a spreadsheet: kernels' names may hold anything."""
    import pyarrow.compute as pc

    for index, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            # A text may occur in many rows, but is converted only once.
            encoded = pc.dictionary_encode(table[column.name].combine_chunks())
            texts = [None if text is None else for_csv(printable(text)) for text in encoded.dictionary.to_pylist()]
            cells = pc.take(pa.array(texts, pa.string()), encoded.indices)
            table = table.set_column(index, column, cells)
    return table

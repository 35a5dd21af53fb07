"""A trace as tables and figures."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import for_csv, printable
from multicard.trace.files import open_capture
from multicard.trace.find_steps import find_steps as find_steps_of
from multicard.trace.find_steps import with_steps
from multicard.trace.model import Trace
from multicard.trace.summary import summarized
from multicard.trace.tables import ACTIVITIES, CAPTURE, SCOPES, STEP, STEPS, ActivityTables, activity_tables

if TYPE_CHECKING:  # a second to import, which the command line saves
    import pandas as pd
    from matplotlib.figure import Figure

    from multicard.analysis.bottlenecks.of_capture import Answer
    from multicard.analysis.runs.step_periods import StepTime


class NotRecorded(UserError):
    """A table was asked for that the trace has no events for; the message says which are missing."""


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
        A `.sqlite`, `.nsys-rep` or `.qdrep` (which need `nsys`), `.json` or `.json.gz` file, or several or a folder of
        them, one per node or rank of the same job.
    tables
        Names of the tables to compute, all by default: fewer need less time.
    scope
        `capture`: everything recorded. `steps`: from the first step's start to the last one's end, and of what ran on
        devices what was launched then; everything, if the trace shows no steps.
    find_steps
        Where no range is named `step`, take as steps what other ranges, PyTorch's optimizers or their kernels tell.
    large
        Read a gzipped file even if it unpacks to more than 40 times its size, which few traces do.

    Raises `UserError` if there is no trace, it cannot be read, or there is no table or scope of a name.

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
    """Raise `UserError` if there is no path, or no table or scope of a name."""
    if not paths:
        raise UserError("no path of a trace, expected at least one")
    unknown = sorted(set(tables or ()) - set(ACTIVITIES))
    if unknown:
        raise UserError(f"no table {unknown[0]}, expected some of {', '.join(ACTIVITIES)}")
    if scope not in SCOPES:
        raise UserError(f"no scope {scope}, expected {' or '.join(SCOPES)}")


def _has_marked_steps(activity: ActivityTables) -> bool:
    """True if a phase or a row of the timeline is of a range that is named `step`."""
    rows = [*activity.rows.get("phases", []), *activity.rows.get("timeline", [])]
    return any((row.get("phase") or row["scope"]) == STEP for row in rows)


class TraceAnalysis:
    """The activity tables of a trace, as `read_trace` gives them.

    Each table is an attribute (`trace.kernels`), an entry (`trace["kernels"]`) and a member of `trace.tables`: a
    pandas DataFrame with `report`, `rank` and `process` first. Units are in the names of columns: `_s` seconds,
    `_bytes` bytes. What was not recorded is `<NA>` or NaN, never 0. A table that the trace has no events for raises
    `NotRecorded`, which says why.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        tables: ActivityTables,
        traces: list[Trace],
        scratch: tempfile.TemporaryDirectory[str],
        scope: str,
    ) -> None:
        # The file or folder, the first of several.
        self.path = paths[0]
        self.paths = tuple(paths)
        # What the tables are about: the `capture` or its `steps`.
        self.scope = scope
        # The reason why a table is not there, by its name.
        self.absent: Mapping[str, str] = MappingProxyType(tables.absent)
        # Lines on what was set right in the capture.
        self.notices = tables.notices
        # Lines on what is missing from the capture, so that what it shows may be wrong.
        self.warnings = tables.warnings
        self._activity = tables
        self._traces = traces
        # The folder of exported reports is removed with this object.
        self._scratch = scratch
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def tables(self) -> "dict[str, pd.DataFrame]":
        """The recorded tables by name."""
        return {name: self[name] for name in self.names}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return one table as Python values, None for what was not recorded.

        Raises `NotRecorded` if the trace has no events for it, and `UserError` if no table has that name.
        """
        if name in self.absent:
            raise NotRecorded(f"{self.path}: {name}: cannot tell: {self.absent[name]}")
        if name not in self._activity.rows:
            raise UserError(f"{self.path}: no table {name}, expected one of {', '.join(self.names)}")
        return self._activity.rows[name]

    def summary(self, name: str) -> list[dict[str, Any]]:
        """Return one table in short: `rows`, but means over steps."""
        return summarized(name, self.rows(name))

    @property
    def names(self) -> list[str]:
        """Names of the recorded tables."""
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
        from multicard.analysis.bottlenecks.of_capture import answer

        return answer(self._activity)

    def figure(self) -> "Figure":
        """Draw where each device's time goes, over the capture or all steps, and per step."""
        from multicard.api.display import unmanaged
        from multicard.figures.style import styled
        from multicard.figures.timeline import timeline

        rows = self.rows("timeline")
        if not self._shows_devices():
            raise NotRecorded(f"{self.path}: timeline: cannot tell: the capture holds no kernels")
        with styled():
            return unmanaged(timeline(rows))

    def compare(self, other: "TraceAnalysis") -> "pd.DataFrame":
        """Compare the steps with those of another trace: how long one takes, then what differs, largest first.

        Returns
        -------
        pandas.DataFrame
            Columns `table`, `name`, `a_s` (this trace), `b_s` (the other), `difference_s`, `ratio` (b over a) with
            its 95% interval `low` to `high`, and `a_calls` and `b_calls`. Seconds and calls are `per step` where both
            traces show steps, else both of the `whole capture`, as `attrs["basis"]` says. The row `step time` comes
            first: elapsed time over steps, from the start of the first to that of the last; it alone has an interval,
            which covers what varies within the captures. Without steps the row `span` stands in its place: the time
            from a device's first activity to its last. Rows of `timeline` count every moment of a device once. The
            others are means over processes of summed durations, which add up where they overlap; host calls that wait
            for a device come last. By side, `attrs["step_times"]` has the `StepTime` of those that show steps,
            `attrs["periods"]` the times from start to start, `attrs["outlying"]` numbers of steps that stand out;
            `attrs["gpus"]` has the kinds of GPUs if they differ.
        """
        import pandas as pd

        from multicard.analysis.comparison.trace_comparison import COLUMNS, compare_captures, differing_gpus
        from multicard.analysis.runs.step_periods import long_steps, step_time

        sides = {"a": self, "b": other}
        tables = {side: trace._compared_tables(STEPS) for side, trace in sides.items()}
        step_times: dict[str, StepTime] = {}
        for side in sides:
            time = step_time(tables[side])
            if time is not None:
                step_times[side] = time
        if len(step_times) < len(sides):
            # Both are compared over their whole capture, which a trace without steps has in either scope.
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
        """Return the tables that a comparison needs, of a scope."""
        from multicard.analysis.comparison.trace_comparison import COMPARED

        computed = {*self._activity.rows, *self._activity.absent}
        if self.scope == scope and computed.issuperset(COMPARED):
            return self._activity
        return activity_tables(self._traces, COMPARED, scope=scope)

    def _gpus(self) -> tuple[str, ...]:
        return tuple(name for trace in self._traces for name in trace.gpus)

    def save(self, folder: str | Path) -> list[Path]:
        """Write each recorded table as Parquet and CSV, and a figure of the timeline, if any; return their paths."""
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

            figure = folder / "timeline.png"
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
    """Return a table whose text a terminal and a spreadsheet may show, as names of kernels may be anything."""
    import pyarrow.compute as pc

    for index, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            # A text occurs in many rows: it is encoded once.
            encoded = pc.dictionary_encode(table[column.name].combine_chunks())
            texts = [None if text is None else for_csv(printable(text)) for text in encoded.dictionary.to_pylist()]
            cells = pc.take(pa.array(texts, pa.string()), encoded.indices)
            table = table.set_column(index, column, cells)
    return table

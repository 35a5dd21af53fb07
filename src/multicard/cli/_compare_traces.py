"""What `multicard compare` prints of two traces."""

from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import CANNOT_TELL_CODE
from multicard.cli._console import rows_table, say
from multicard.core.text import counted, first_of
from multicard.core.units import number, percent, show

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 20  # long steps in a line
LONGEST_TABLE = 30  # differences
STEPS_CAPTION = (
    "Times and numbers of calls are per step. The step time is elapsed time over steps, from the start of the first to "
    "that of the last; its interval covers what varies within the two captures, not from one run to another."
)
CAPTURE_CAPTION = (
    "Times and numbers of calls are of the whole capture. The span reaches from a GPU's first activity to its last."
)
ROWS_CAPTION = (
    "Rows of timeline count every moment of a device once; the others are means over processes, in which durations "
    "that overlap add up."
)


def compare_traces(a: Path, b: Path) -> int:
    """Print what differs between two traces: the step time first, then the largest difference; give the exit code."""
    from multicard import read_trace
    from multicard.analysis.comparison.trace_comparison import COMPARED, PER_STEP

    before, after = (read_trace(path, tables=COMPARED, scope="steps", find_steps=True) for path in (a, b))
    found = before.compare(after)
    notices = [f"{side}: {notice}" for side, of in (("a", before), ("b", after)) for notice in of.notices]
    if found.empty:
        say("cannot tell: the two traces have no table in common", *notices)
        return CANNOT_TELL_CODE
    is_per_step = found.attrs["basis"] == PER_STEP
    said = [*_gpus(found), *(_step_times(found) if is_per_step else _spans(found)), *_collectives(found)]
    say(*said, *notices, "")
    of = STEPS_CAPTION if is_per_step else CAPTURE_CAPTION
    rows = found.astype(object).where(found.notna(), None).to_dict("records")
    say(rows_table(rows, f"a: {a}, b: {b}", f"{of} {ROWS_CAPTION}", LONGEST_TABLE))
    return 0


def _gpus(found: "pd.DataFrame") -> list[str]:
    """A line if the GPUs are not of the same kinds: what differs may be theirs."""
    listed = [f"{' and '.join(kinds)} in {side}" for side, kinds in found.attrs["gpus"].items()]
    return [f"GPUs differ: {', '.join(listed)}"] if listed else []


def _step_times(found: "pd.DataFrame") -> list[str]:
    """How many times as fast a step is, and how unequal the steps are."""
    import pandas as pd

    from multicard.analysis.comparison.trace_comparison import STEP_TIME
    from multicard.analysis.runs.step_periods import FEWEST_PERIODS

    times = found.attrs["step_times"]
    [row] = found[found["name"].eq(STEP_TIME) & found["table"].eq("steps")].itertuples()
    shown = [f"{show('a_s', time.mean_s)} in {side} ({counted(time.count, 'step')})" for side, time in times.items()]
    judged = _change(row.ratio)
    if pd.isna(row.low):
        judged += f", too few steps for an interval: capture {FEWEST_PERIODS + 1} or more"
    else:
        judged += f" (95% CI {_change(row.low)} to {_change(row.high)})"
        judged = f"inconclusive: {judged}" if row.low <= 1 <= row.high else judged
    faster = f"; {_times_as_fast(row.ratio)}, if a step does the same work" if row.ratio else ""
    lines = [f"step time: {', '.join(shown)}: {judged}{faster}"]
    for side, time in times.items():
        if time.is_skewed:
            low, high = (show("a_s", quartile) for quartile in time.quartiles_s)
            median = show("a_s", time.median_s)
            lines.append(f"steps of {side} are unequal: median {median}, quartiles {low} and {high}; the mean counts")
        steps, periods = found.attrs["outlying"][side], found.attrs["periods"][side]
        if steps:
            named = first_of([f"step {step} ({show('a_s', periods[step - 1])})" for step in steps], LONGEST)
            lines.append(f"far longer than the others in {side}: {named}")
    return lines


def _change(ratio: float) -> str:
    """By how much a ratio is above or below 1.

    >>> _change(1.0 - 1e-12), _change(0.9)
    ('0.0%', '-10.0%')
    """
    change = percent(ratio - 1, decimals=1, signed=True)
    return "0.0%" if change in ("+0.0%", "-0.0%") else change


def _spans(found: "pd.DataFrame") -> list[str]:
    """Why there is no step time, and the spans in its place."""
    from multicard.analysis.comparison.trace_comparison import SPAN

    without = [side for side in ("a", "b") if side not in found.attrs["step_times"]]
    line = f"step time: cannot tell, since no steps were found in {' and '.join(without)}"
    times = found[found["table"] == "timeline"].set_index("name")[["a_s", "b_s"]]
    if SPAN not in times.index or times.loc[SPAN].isna().any() or not times.loc[SPAN].all():
        return [line]
    span_a, span_b = times.loc[SPAN]
    spans = f"span of a GPU: {show('a_s', span_a)} in a, {show('b_s', span_b)} in b"
    if "busy" in times.index and times.loc["busy"].notna().all():
        busy_a, busy_b = times.loc["busy"]
        spans += f" (busy {show('a_s', busy_a)} and {show('b_s', busy_b)})"
    return [line, f"{spans}: {_times_as_fast(span_b / span_a)}, if both do the same work"]


def _times_as_fast(ratio: float) -> str:
    """By the ratio of times, how many times as fast the newer side is.

    >>> _times_as_fast(0.0522), _times_as_fast(1.0)
    ('b is 19.2 times as fast as a', 'b is 1.00 times as fast as a')
    """
    times = 1 / ratio
    return f"b is {times:.1f} times as fast as a" if times >= 10 else f"b is {times:.2f} times as fast as a"


def _collectives(found: "pd.DataFrame") -> list[str]:
    """A line if numbers of collectives differ: then the work does."""
    calls = found[found["table"] == "collectives"][["a_calls", "b_calls"]].astype(float).sum()
    if abs(calls["a_calls"] - calls["b_calls"]) <= 0.005 * calls.max():
        return []
    one, other = (number(calls[name]) for name in ("a_calls", "b_calls"))
    of = found.attrs["basis"].replace("whole", "in the whole")
    return [f"NCCL calls {of}: {one} → {other}"]

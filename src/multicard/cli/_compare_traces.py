"""Print what `multicard compare` finds between two traces."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import CANNOT_TELL_CODE
from multicard.cli._console import rows_table, say
from multicard.core.text import counted, first_of
from multicard.core.units import number, percent, show

if TYPE_CHECKING:
    import pandas as pd

    from multicard.results.step_periods import StepTime

LONGEST = 20  # number of long steps that are named in a line
LONGEST_TABLE = 30  # number of rows in the table of differences
STEPS_CAPTION = (
    "Times and numbers of calls are per step. The step time is elapsed time over steps, from the start of the first to "
    "that of the last; its interval covers variation within the two captures, not between runs."
)
CAPTURE_CAPTION = (
    "Times and numbers of calls are for the whole capture. The span reaches from a GPU's first activity to its last."
)
ROWS_CAPTION = (
    "Rows of timeline count every moment of a device once; the others are means over processes, in which durations "
    "that overlap add up."
)


def compare_traces(a: Path, b: Path) -> int:
    """Print what differs between two traces: the step time, then the largest differences. Return the exit code."""
    from multicard import read_trace
    from multicard.answers.comparison.trace_comparison import COMPARED, PER_STEP

    before = read_trace(a, tables=COMPARED, scope="steps", find_steps=True)
    after = read_trace(b, tables=COMPARED, scope="steps", find_steps=True)
    differences = before.compare(after)
    notices = [f"a: {notice}" for notice in before.notices]
    notices += [f"b: {notice}" for notice in after.notices]
    if differences.empty:
        say("cannot tell: the two traces have no table in common", *notices)
        return CANNOT_TELL_CODE
    is_per_step = differences.attrs["basis"] == PER_STEP
    times = _step_time_lines(differences) if is_per_step else _span_lines(differences)
    say(*_gpu_lines(differences), *times, *_collective_lines(differences), *notices, "")
    # The table has None, not NaN, in its empty cells.
    rows = differences.astype(object).where(differences.notna(), None).to_dict("records")
    caption = STEPS_CAPTION if is_per_step else CAPTURE_CAPTION
    say(rows_table(rows, f"a: {a}, b: {b}", f"{caption} {ROWS_CAPTION}", LONGEST_TABLE))
    return 0


def _gpu_lines(differences: "pd.DataFrame") -> list[str]:
    """Return a line if the kinds of GPUs differ, because this may explain all other differences; else no line."""
    kinds_by_side = differences.attrs["gpus"]
    if not kinds_by_side:
        return []
    sides = [f"{' and '.join(kinds)} in {side}" for side, kinds in kinds_by_side.items()]
    return [f"GPUs differ: {', '.join(sides)}"]


def _step_time_lines(differences: "pd.DataFrame") -> list[str]:
    """Return lines: how many times as fast a step is and, for each side, whether its steps are unequal or some long."""
    import pandas as pd

    from multicard.answers.comparison.trace_comparison import STEP_TIME

    times: dict[str, StepTime] = differences.attrs["step_times"]
    is_step_time = differences["name"].eq(STEP_TIME) & differences["table"].eq("steps")
    [row] = differences[is_step_time].itertuples()
    means = []
    for side, time in times.items():
        mean, step_count = show("a_s", time.mean_s), counted(time.count, "step")
        means.append(f"{mean} in {side} ({step_count})")
    bounds = None if pd.isna(row.low) else (row.low, row.high)
    ratio = _ratio_words(row.ratio, bounds)
    if row.ratio:
        ratio += f"; {_times_as_fast(row.ratio)}, if a step does the same work"
    lines = [f"step time: {', '.join(means)}: {ratio}"]
    for side, time in times.items():
        if time.is_skewed:
            lines.append(_unequal_steps_line(side, time))
        long_steps = differences.attrs["outlying"][side]
        if long_steps:
            periods_s = differences.attrs["periods"][side]
            lines.append(_long_steps_line(side, long_steps, periods_s))
    return lines


def _long_steps_line(side: str, long_steps: Sequence[int], periods_s: Sequence[float]) -> str:
    """Return a line that names the first `LONGEST` long steps of a side. `long_steps`: their numbers, from 1."""
    steps = []
    for step in long_steps:
        period = show("a_s", periods_s[step - 1])
        steps.append(f"step {step} ({period})")
    return f"far longer than the others in {side}: {first_of(steps, LONGEST)}"


def _ratio_words(ratio: float, bounds: tuple[float, float] | None) -> str:
    """Return by how much step times differ, in words.

    `ratio`: step time of b divided by that of a; `bounds`: its 95% interval, None if there are too few steps for one.

    >>> _ratio_words(1.25, None)
    '+25.0%, too few steps for an interval: capture 13 or more'
    >>> _ratio_words(1.02, (0.99, 1.05))
    'inconclusive: +2.0% (95% CI -1.0% to +5.0%)'
    """
    from multicard.results.step_periods import FEWEST_PERIODS

    if bounds is None:
        return f"{_change(ratio)}, too few steps for an interval: capture {FEWEST_PERIODS + 1} or more"
    low, high = bounds
    change = f"{_change(ratio)} (95% CI {_change(low)} to {_change(high)})"
    may_be_equal = low <= 1 <= high
    return f"inconclusive: {change}" if may_be_equal else change


def _change(ratio: float) -> str:
    """Return by how much a ratio is above or below 1, in per cent.

    >>> _change(1.0 - 1e-12), _change(0.9)
    ('0.0%', '-10.0%')
    """
    change = percent(ratio - 1, decimals=1, signed=True)
    return "0.0%" if change in ("+0.0%", "-0.0%") else change


def _unequal_steps_line(side: str, time: "StepTime") -> str:
    low, high = (show("a_s", quartile_s) for quartile_s in time.quartiles_s)
    median = show("a_s", time.median_s)
    return f"steps of {side} are unequal: median {median}, quartiles {low} and {high}; the mean counts"


def _span_lines(differences: "pd.DataFrame") -> list[str]:
    """Return lines: why there is no step time, and instead the spans of both sides, if both have one."""
    from multicard.answers.comparison.trace_comparison import SPAN

    without_steps = [side for side in ("a", "b") if side not in differences.attrs["step_times"]]
    line = f"step time: cannot tell, since no steps were found in {' and '.join(without_steps)}"
    timeline = differences[differences["table"] == "timeline"].set_index("name")
    spans = _times_of_both(timeline, SPAN)
    if spans is None or 0 in spans:
        return [line]
    span_a, span_b = spans
    words = f"span of a GPU: {show('a_s', span_a)} in a, {show('b_s', span_b)} in b"
    busy = _times_of_both(timeline, "busy")
    if busy is not None:
        busy_a, busy_b = busy
        words += f" (busy {show('a_s', busy_a)} and {show('b_s', busy_b)})"
    return [line, f"{words}: {_times_as_fast(span_b / span_a)}, if both do the same work"]


def _times_of_both(timeline: "pd.DataFrame", name: str) -> tuple[float, float] | None:
    """Return a time of both sides, in seconds; None if one side does not have it. `timeline`: rows by name."""
    if name not in timeline.index:
        return None
    a_s, b_s = timeline.loc[name, ["a_s", "b_s"]].astype(float)
    if math.isnan(a_s) or math.isnan(b_s):
        return None
    return a_s, b_s


def _times_as_fast(ratio: float) -> str:
    """Return how many times as fast b is. `ratio`: time of b divided by time of a.

    >>> _times_as_fast(0.0522), _times_as_fast(1.0)
    ('b is 19.2 times as fast as a', 'b is 1.00 times as fast as a')
    """
    times = 1 / ratio
    return f"b is {times:.1f} times as fast as a" if times >= 10 else f"b is {times:.2f} times as fast as a"


def _collective_lines(differences: "pd.DataFrame") -> list[str]:
    """Return a line if the numbers of collectives differ by more than 0.5%: then the traces do different work."""
    collectives = differences[differences["table"] == "collectives"]
    calls_a, calls_b = collectives[["a_calls", "b_calls"]].astype(float).sum()
    tolerance = 0.005 * max(calls_a, calls_b)
    if abs(calls_a - calls_b) <= tolerance:
        return []
    basis = differences.attrs["basis"].replace("whole", "in the whole")
    return [f"NCCL calls {basis}: {number(calls_a)} → {number(calls_b)}"]

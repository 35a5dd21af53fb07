"""The parts of a run's step that the phases of its measured steps show.

In each step only the rank that waited for data and evaluated longest counts, because the other ranks wait for it in
their backward pass.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.results.breakdown import StepPart
from multicard.results.larger_batches import have_larger_batches
from multicard.results.windows import Window
from multicard.stats.outliers import far_above

# Seconds of each part, one value per step.
PartTimes = dict[StepPart, np.ndarray]

# Phases that make up the part in which a rank computes.
_COMPUTING_PHASES = ("forward", "backward", "optimizer")
# Phases that make up each of the other parts.
_PHASES_OF_PART = {
    StepPart.DATA: ("data",),
    StepPart.EVALUATION: ("evaluation",),
    StepPart.MEMORY_OPERATIONS: ("transfer",),
}
# Parts that normally take far longer in some steps, because a loader delivers in bursts, and evaluation is rare. Such
# steps are not stalls.
_UNEVEN_PARTS = (StepPart.DATA, StepPart.EVALUATION)
# Most stalled steps whose numbers are shown.
_STEPS_NAMED = 5


class PhaseParts(NamedTuple):
    """The parts of the measured steps that phases show. Made by `parts_of_phases`."""

    # The time of each part divided by the time of all parts; both are summed over the steps. Empty if no phase was
    # recorded.
    shares: dict[StepPart, float]
    # The number of stalled steps and the numbers of the first ones, in words; None if no step stalled.
    stalled_steps: str | None


def parts_of_phases(window: Window, devices: int) -> PhaseParts:
    """Return the parts of the step that phases show.

    `window`: the measured steps. `devices`: number of devices of the run. If there are several, communication and
    computing are one part, because phases do not show the difference.
    """
    parts = _part_times(window, devices)
    if not parts:
        return PhaseParts({}, None)
    parts, is_stalled = _without_stalls(parts, _have_larger_batches(window))
    totals_s = {part: times_s.sum() for part, times_s in parts.items()}
    step_s = sum(totals_s.values())
    shares = {part: float(total_s / step_s) for part, total_s in totals_s.items()}
    stalled = window.waiting.index[is_stalled].tolist()
    return PhaseParts(shares, _stalled_words(stalled, len(is_stalled)))


def _part_times(window: Window, devices: int) -> PartTimes:
    """Return the seconds of each part in each step, on the rank that `Window.waiting` chooses; empty without phases.

    The time of the step's period that is in no phase is `OTHER`, so the parts of a step add up to its period. `OTHER`
    is 0 if the phases take longer than the period.
    """
    computing = StepPart.COMPUTE if devices == 1 else StepPart.COMPUTE_OR_COMMUNICATION
    phases_of_part = {computing: _COMPUTING_PHASES, **_PHASES_OF_PART}
    parts: PartTimes = {}
    for part, phases in phases_of_part.items():
        recorded = [phase for phase in phases if _is_recorded(window.steps, f"{phase}_s")]
        if recorded:
            parts[part] = window.waiting[recorded].to_numpy().sum(axis=1)
    if parts:
        in_phases_s = sum(parts.values())
        periods_s = window.waiting["period_s"].to_numpy()
        parts[StepPart.OTHER] = np.maximum(periods_s - in_phases_s, 0.0)
    return parts


def _is_recorded(steps: pd.DataFrame, column: str) -> bool:
    """Return True if the column has a value in any step."""
    return bool(steps[column].notna().any())


def _have_larger_batches(window: Window) -> np.ndarray:
    """Return a mask of the steps that have larger batches; see `larger_batches`."""
    if not {"forward_s", "backward_s"} <= set(window.steps):
        return np.zeros(len(window.waiting), dtype=bool)
    forward_s, backward_s = (
        window.steps.pivot_table(index="step", columns="rank", values=name, dropna=False)
        for name in ("forward_s", "backward_s")
    )
    is_larger: np.ndarray = have_larger_batches(forward_s, backward_s).to_numpy()
    return is_larger


def _without_stalls(parts: PartTimes, is_larger: np.ndarray) -> tuple[PartTimes, np.ndarray]:
    """Return the parts with stalls as a further part, and a mask of the steps that stalled.

    A step stalls if its time, without `_UNEVEN_PARTS`, is far above that of the other steps (`far_above`), and if that
    is not because of a larger batch. `is_larger`: mask of the steps with such a batch. In a stalled
    step, the time of a part beyond the part's median over the other steps is moved to `STALLS`.
    """
    even_parts = {part: times_s for part, times_s in parts.items() if part not in _UNEVEN_PARTS}
    is_stalled = far_above(np.asarray(sum(even_parts.values()))) & ~is_larger
    without_stalls = dict(parts)
    stalls_s = np.zeros(len(is_stalled))
    for part, times_s in even_parts.items():
        median_s = np.median(times_s[~is_stalled])
        usual_s = np.minimum(times_s, median_s)
        stalls_s += np.where(is_stalled, times_s - usual_s, 0.0)
        without_stalls[part] = np.where(is_stalled, usual_s, times_s)
    without_stalls[StepPart.STALLS] = stalls_s
    return without_stalls, is_stalled


def _stalled_words(stalled: Sequence[int], count: int) -> str | None:
    """Return how many steps stalled, and the numbers of the first ones, as text; `count`: number of all steps.

    >>> _stalled_words([25, 75], 200), _stalled_words([1, 2, 3, 4, 5, 6], 200), _stalled_words([], 200)
    ('2 of 200: 25, 75', '6 of 200: 1, 2, 3, 4, 5, …', None)
    """
    if not stalled:
        return None
    first = ", ".join(map(str, stalled[:_STEPS_NAMED]))
    more = ", …" if len(stalled) > _STEPS_NAMED else ""
    return f"{len(stalled)} of {count}: {first}{more}"


def stalled_count(words: str) -> int:
    """Return the number of stalled steps in the words of `PhaseParts.stalled_steps`.

    >>> stalled_count("12 of 200: 1, 2, 3, 4, 5, …")
    12
    """
    return int(words.partition(" ")[0])

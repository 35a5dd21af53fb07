"""Which steps of the ranks of a run are the same one: their captures need not begin and end on the same step.

Collectives tell: one ends on all ranks at about the same time. On one clock, the last collectives of two ranks' steps
are those of the same step if they end together; on clocks that are not known to agree, if they are equally far apart in
every step.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from multicard.trace.find_steps import FoundSteps, HostSteps, Owner
from multicard.trace.model import Integers, Trace

MOST_APART = 1  # steps by which the captures of two ranks may differ at either end
LEAST_PAIRS = 3  # steps whose distances tell whether they are equal
CLEARLY = 0.5  # another pairing than that by numbers from the first step on has to be so much better, as a part


def aligned(traces: Sequence[Trace], found: FoundSteps) -> dict[Owner, HostSteps]:
    """The steps that all ranks have, in order, so many of each.

    Where collectives tell nothing, steps are the same by their number.

    Parameters
    ----------
    traces
        The traces in which the steps were found.
    """
    steps = found.steps
    reference = min(steps, key=lambda owner: len(steps[owner].starts))
    clocks = {owner: traces[owner[0]].clock or (f"trace {owner[0]}", 0) for owner in steps}
    ends = {owner: _last_collectives(own, *found.collectives[owner], clocks[owner][1]) for owner, own in steps.items()}
    later = {
        owner: _steps_later(
            ends[reference],
            ends[owner],
            range(-MOST_APART, len(own.starts) - len(steps[reference].starts) + MOST_APART + 1),
            clocks[owner][0] == clocks[reference][0],
        )
        for owner, own in steps.items()
    }
    first = max(-shift for shift in later.values())
    last = min(len(steps[owner].starts) - shift for owner, shift in later.items())
    return {owner: own.part(slice(first + later[owner], last + later[owner])) for owner, own in steps.items()}


Ends = Mapping[int, int]  # of the last collective of steps that have any, by the number of the step


def _last_collectives(steps: HostSteps, launched: Integers, ended: Integers, origin: int) -> Ends:
    """When the last collective ended that each step launched, on a clock with this origin."""
    at = np.searchsorted(launched, steps.ends) - 1
    return {
        number: int(ended[place]) + origin
        for number, (place, start) in enumerate(zip(at.tolist(), steps.starts.tolist(), strict=True))
        if place >= 0 and launched[place] >= start
    }


def _steps_later(reference: Ends, own: Ends, shifts: range, one_clock: bool) -> int:
    """Number of a rank's step that is the first one of the reference, one of `shifts`."""
    apart: dict[int, float] = {}
    for shift in shifts:
        pairs = np.array([own[number + shift] - end for number, end in reference.items() if number + shift in own])
        if len(pairs) >= (1 if one_clock else LEAST_PAIRS):
            apart[shift] = float(np.median(np.abs(pairs)) if one_clock else np.std(pairs - pairs[0]))
    best = min(apart, key=lambda shift: (apart[shift], abs(shift)), default=0)
    return best if apart and apart[best] < CLEARLY * apart.get(0, np.inf) else 0

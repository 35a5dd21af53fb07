"""Place the profiled window in a pass over the data: where the loader sets the pace as it does in training."""

from typing import NamedTuple

# After so many backward passes without an optimizer's update, each ends a step.
FIRST_BY_BACKWARD = 100
# Steps: a profiler is still starting in the first ones that it records.
LEAST_SETTLING = 2


class ProfiledWindow(NamedTuple):
    """Numbers of steps in the pass that is profiled, in their order.

    The profiler records the settling steps, too, but they do not count: it is still starting, and the loader has read
    ahead while it started.
    """

    warmup_steps: int  # before the profiler starts
    settling_steps: int
    profiled_steps: int
    crosses_pass: bool  # a pass ends while the profiler records, or so shortly before that the loader is still starting

    @property
    def steps(self) -> int:
        """Steps in the window, warm-up included."""
        return self.warmup_steps + self.settling_steps + self.profiled_steps


def place_window(ahead: int, pass_steps: int, warmup: int, profiled: int) -> ProfiledWindow:
    """Place a window of `profiled` steps or more.

    Twice as many steps as the loader reads ahead are dropped before the profiler starts, and again after, two at least:
    what was read ahead during a pause would hide the loader. Four times as many make the window, so that it has several
    bursts of the loader. The window lies within one pass if a pass is long enough.

    If the loader reads half a pass ahead or more, steps before the profiler starts do not help. Then the profiler
    settles until the pass ends, if that is sooner: the next pass begins with nothing read ahead. A window of one whole
    pass is enough.

    `ahead`: steps for which the loader reads ahead; `pass_steps`: steps of one pass over the data; `warmup`: least
    steps before the profiler starts; there is at least one, in which the loader starts.

    >>> place_window(ahead=8, pass_steps=1000, warmup=0, profiled=10)
    ProfiledWindow(warmup_steps=16, settling_steps=16, profiled_steps=32, crosses_pass=False)
    >>> place_window(ahead=5, pass_steps=5, warmup=3, profiled=2)
    ProfiledWindow(warmup_steps=3, settling_steps=2, profiled_steps=5, crosses_pass=True)
    """
    if 2 * ahead >= pass_steps:
        warmup = max(1, warmup)
        until_pass_ends = -warmup % pass_steps
        settling = max(LEAST_SETTLING, min(2 * ahead, until_pass_ends))
        profiled = max(profiled, min(4 * ahead, pass_steps))
        return ProfiledWindow(warmup, settling, profiled, crosses_pass=True)
    settling = max(LEAST_SETTLING, 2 * ahead)
    profiled = max(profiled, 4 * ahead)
    earliest = max(1, 2 * ahead)  # steps of a pass before the profiler may start in it
    latest = pass_steps - settling - profiled
    fits = earliest <= latest
    warmup = max(earliest, warmup)
    steps_into_pass = warmup % pass_steps
    if fits and not earliest <= steps_into_pass <= latest:
        warmup += (earliest - steps_into_pass) % pass_steps  # until that step of the next pass
    return ProfiledWindow(warmup, settling, profiled, crosses_pass=not fits)

"""Place the profiled window in a pass over the data, where the loader delays steps as much as it does in training."""

from typing import NamedTuple

# If no optimizer has updated by then, the backward pass of this number, and each later one, ends a step.
FIRST_BY_BACKWARD = 100
# Least number of settling steps, because a profiler is still starting in the first steps that it records.
LEAST_SETTLING = 2


class ProfiledWindow(NamedTuple):
    """Numbers of steps that follow each other: warm-up, settling and profiled steps.

    The profiler starts after the warm-up steps. It records the settling steps, too, but they do not count: the profiler
    is still starting, and the script uses batches that the loader has read ahead during the start.
    """

    warmup_steps: int  # `place_window` counts them from the begin of a pass, `plan.place` from the last measured step
    settling_steps: int
    profiled_steps: int
    crosses_pass: bool  # a pass may end while the profiler records, or so shortly before that the loader still starts

    @property
    def steps(self) -> int:
        """Steps in the window, warm-up included."""
        return self.warmup_steps + self.settling_steps + self.profiled_steps


def place_window(ahead: int, pass_steps: int, warmup: int, profiled: int) -> ProfiledWindow:
    """Return a window of at least `profiled` profiled steps.

    `ahead`: number of steps for which the loader reads batches ahead; `pass_steps`: steps of one pass over the data;
    `warmup`: least number of warm-up steps. There is at least one, because the loader starts in the first step.

    Batches that were read ahead during a pause, as while the profiler starts, hide how slow the loader is. So the
    profiler starts at least 2 * `ahead` steps after the begin of a pass, and 2 * `ahead` settling steps follow (at
    least `LEAST_SETTLING`). At least 4 * `ahead` steps are profiled, so that they show several bursts of the loader.
    The settling and profiled steps lie within one pass if a pass is long enough.

    If the loader reads half a pass ahead or more, warm-up steps do not help. Then settling ends with the pass, if that
    is sooner, because the next pass begins with nothing read ahead. One whole pass is enough instead of 4 * `ahead`
    profiled steps.

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
    # The profiler may start after `earliest` to `latest` steps of a pass.
    earliest = max(1, 2 * ahead)
    latest = pass_steps - settling - profiled
    fits = earliest <= latest
    warmup = max(earliest, warmup)
    steps_into_pass = warmup % pass_steps
    if fits and not earliest <= steps_into_pass <= latest:
        warmup += (earliest - steps_into_pass) % pass_steps  # until the next time that `earliest` steps have been made
    return ProfiledWindow(warmup, settling, profiled, crosses_pass=not fits)

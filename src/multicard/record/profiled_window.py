"""Where the profiled window lies in a pass over the data: where the loader sets the pace as it does in training."""

from typing import NamedTuple

FIRST_BY_BACKWARD = 100  # backward passes without an optimizer's update, after which each ends a step
LEAST_SETTLING = 2  # steps: a profiler goes on starting in the first ones that it records


class ProfiledWindow(NamedTuple):
    """Steps of the pass that is profiled, in order, and whether it is long enough for them."""

    warmup_steps: int  # before the profiler starts
    settling_steps: int  # warm-up too: the profiler records, but is still starting, and the loader read ahead meanwhile
    profiled_steps: int
    crosses_pass: bool  # a pass ends while the profiler records, or so shortly before that the loader is still starting

    @property
    def steps(self) -> int:
        """All of them."""
        return self.warmup_steps + self.settling_steps + self.profiled_steps


def place_window(ahead: int, pass_steps: int, warmup: int, profiled: int) -> ProfiledWindow:
    """Place a window of `profiled` steps or more.

    Twice as many steps as the loader reads ahead are dropped before the profiler starts, and again after, two at least:
    what was read ahead during a pause would hide the loader. Four times as many make the window, so that it has several
    bursts of the loader. The window lies within one pass if a pass is long enough.

    Where twice that is a pass or more, nothing is gained by steps before the profiler starts, and it
    settles until the pass ends if that is sooner: the next one begins with nothing read ahead. A whole pass is enough.

    `ahead`: batches that the loader reads ahead; `pass_steps`: steps of one pass over the data; `warmup`: least steps
    before the profiler starts; there is at least one, in which the loader starts.

    >>> place_window(ahead=8, pass_steps=1000, warmup=0, profiled=10)
    ProfiledWindow(warmup_steps=16, settling_steps=16, profiled_steps=32, crosses_pass=False)
    >>> place_window(ahead=5, pass_steps=5, warmup=3, profiled=2)
    ProfiledWindow(warmup_steps=3, settling_steps=2, profiled_steps=5, crosses_pass=True)
    """
    if 2 * ahead >= pass_steps:
        warmup = max(1, warmup)
        settling = max(LEAST_SETTLING, min(2 * ahead, -warmup % pass_steps))
        return ProfiledWindow(warmup, settling, max(profiled, min(4 * ahead, pass_steps)), crosses_pass=True)
    settling = max(LEAST_SETTLING, 2 * ahead)
    least, profiled = max(1, 2 * ahead), max(profiled, 4 * ahead)
    warmup = max(least, warmup)
    place = warmup % pass_steps  # in the pass in which the profiler starts
    fits = least + settling + profiled <= pass_steps
    if fits and not least <= place <= pass_steps - settling - profiled:
        warmup += (least - place) % pass_steps
    return ProfiledWindow(warmup, settling, profiled, not fits)

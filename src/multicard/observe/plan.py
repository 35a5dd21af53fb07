"""Decide which window each step of a script is in."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from multicard.core.errors import UserError
from multicard.core.job_file import ObservedJob
from multicard.observe.batches import Pass, used_by_step
from multicard.observe.loaders import Loader
from multicard.observe.record.profiled_window import LEAST_SETTLING, ProfiledWindow, place_window


class MarkedTraining(NamedTuple):
    """The begin of a training, as the program marks it (`multicard.marks.training`)."""

    steps: int | None  # number of warm-up and measured steps together; None if the program does not state it


class Pace(NamedTuple):
    """How a script draws from its loader, at the end of the measured window."""

    steps_in_pass: int = 0  # steps so far in the current pass
    batches_per_step: float = 0.0  # mean of the measured steps; 0 if unknown
    pass_batches: int | None = None  # batches of one pass; None if the loader does not state them
    ahead: int = 0  # batches that the loader's workers prepare before they are asked for

    @property
    def pass_steps(self) -> int | None:
        """Steps of one pass, rounded up; None if unknown.

        >>> Pace(batches_per_step=2.0, pass_batches=7).pass_steps
        4
        """
        if not self.pass_batches or not self.batches_per_step:
            return None
        return max(1, math.ceil(self.pass_batches / self.batches_per_step))


def place(pace: Pace, profiled: int) -> ProfiledWindow:
    """Return the profiled window, of at least `profiled` profiled steps, after the measured window.

    Its `warmup_steps` are the steps between the last measured step and the start of the profiler. If the length of a
    pass is unknown, there are none.

    >>> place(Pace(steps_in_pass=90, batches_per_step=2.0, pass_batches=200, ahead=4), profiled=10)
    ProfiledWindow(warmup_steps=14, settling_steps=4, profiled_steps=10, crosses_pass=False)
    """
    steps_ahead = math.ceil(pace.ahead / pace.batches_per_step) if pace.batches_per_step else 0
    if pace.pass_steps is None:
        settling = max(LEAST_SETTLING, 2 * steps_ahead)
        return ProfiledWindow(0, settling, max(profiled, 4 * steps_ahead), crosses_pass=False)
    window = place_window(steps_ahead, pace.pass_steps, pace.steps_in_pass, profiled)
    return window._replace(warmup_steps=window.warmup_steps - pace.steps_in_pass)


class Plan:
    """The windows of a script's steps, which are counted from 1.

    `training_steps`: number of warm-up and measured steps together if the script
    states it, else None. `profiled` is None until `Recording` places the profiled window, at the end of the measured
    one.

    Raises `UserError` if the training has no more steps than the warm-up.
    """

    def __init__(self, job: ObservedJob, training_steps: int | None = None):
        self.warmup = job.warmup_steps
        if training_steps is not None:
            self.measured = training_steps - self.warmup
            if self.measured <= 0:
                raise UserError(f"warmup_steps: {self.warmup}, but the run has only {training_steps} steps")
        elif job.measured_steps is not None:
            self.measured = job.measured_steps
        else:
            raise ValueError("neither the job nor the script states how many steps are measured")
        self.measured_end = self.warmup + self.measured  # number of the last measured step
        self.least_profiled = job.profiled_steps
        self.is_profiled = self.least_profiled > 0
        self.profiled: ProfiledWindow | None = None

    @property
    def opening(self) -> int | None:
        """Number of the first step that the profiler records; None until the profiled window is placed."""
        if self.profiled is None:
            return None
        return self.measured_end + self.profiled.warmup_steps + 1

    @property
    def steps(self) -> int:
        """Number of all steps. Until the profiled window is placed, it is the least that this number can be."""
        if not self.is_profiled:
            return self.measured_end
        if self.profiled is None:
            return self.measured_end + LEAST_SETTLING + self.least_profiled
        return self.measured_end + self.profiled.steps

    def window(self, step: int) -> str:
        """Return the window of a step: "warmup", "measured" or "profiled".

        Steps after the measured ones that are not profiled, settling steps included, are "warmup", too.
        """
        if step <= self.warmup:
            return "warmup"
        if step <= self.measured_end:
            return "measured"
        is_profiled = self.profiled is not None and step > self.steps - self.profiled.profiled_steps
        return "profiled" if is_profiled else "warmup"


def pace_of(loader: Loader, passes: Sequence[Pass], plan: Plan, steps_in_pass: int) -> Pace:
    """Return how the measured steps drew from `loader`.

    `passes`: all passes over this loader; `steps_in_pass`: steps so far in the current pass.
    """
    used = used_by_step(passes)
    measured_steps = range(plan.warmup + 1, plan.measured_end + 1)
    batches = sum(len(used.get(step, ())) for step in measured_steps)
    return Pace(steps_in_pass, batches / plan.measured, loader.length, loader.ahead)

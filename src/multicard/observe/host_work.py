"""Count and time what the host does in measured steps that no phase shows.

That is: collections of garbage, saves, collectives, compilations of torch.compile, starts and stops of loader workers,
and slow samplers of loaders.
Collectives are those that Python code calls, such as the script or a layer of synchronized batch norm. The buckets of
DistributedDataParallel, which PyTorch's C++ code exchanges, are not among them.

`CallTimer` times a call. `OpenWork` keeps it with the open step, as `StepWork`, until it is known to which step and
phase it belongs. `HostWork` sums up the work of all measured steps.
"""

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import torch

from multicard.core.host_work import AUTOMATIC
from multicard.core.values import JsonObject
from multicard.observe.phases import BACKWARD, DATA, FORWARD, MAYBE_FORWARD, NO_PHASE, TRANSFER, phase_of
from multicard.observe.record.recorder import MEASURED, Step
from multicard.observe.stack_samples import StackSample, StackSamples
from multicard.observe.user_code import calling_site

# Numbers of at most so many steps are kept for each piece of work.
STEPS_KEPT = 32
# A sampler is asked for each batch, and mostly answers at once. Its calls are counted if they take so many seconds.
LEAST_SAMPLING_S = 0.001


class CallTimer:
    """Times calls. Of nested calls only the outermost counts."""

    def __init__(self) -> None:
        self.depth = 0  # number of calls that are open
        self._started = 0.0  # when the outermost of these began

    def begin(self) -> None:
        """Called before a call."""
        self.depth += 1
        if self.depth == 1:
            self._started = perf_counter()

    def end(self) -> float | None:
        """Called after a call; return its seconds, or None if it is within another one.

        Also None if it began before the process was observed.
        """
        now = perf_counter()  # first, because garbage may be collected at any moment from here on
        seconds = now - self._started if self.depth == 1 else None
        self.depth = max(0, self.depth - 1)
        return seconds

    def leave_out(self, seconds: float) -> None:
        """Have the open call last so many seconds less, because they are counted as other work."""
        self._started += seconds


class StepWork:
    """One call in a step. `event`: the latest event of the step before it, which tells the phase (see `phases`)."""

    __slots__ = ("bytes", "event", "function", "kind", "seconds", "site")

    def __init__(self, kind: str, function: str, event: str | None, seconds: float, size: int, site: str | None):
        self.kind = kind
        self.function = function
        self.event = event
        self.seconds = seconds
        self.bytes = size
        self.site = site


class Work:
    """Calls of one function in one phase of the measured steps."""

    __slots__ = ("bytes", "calls", "first_steps", "last_step", "seconds", "site", "steps")

    def __init__(self, site: str | None) -> None:
        self.site = site  # file and line of the user's code that made the first call; None if none did
        self.calls = 0
        self.seconds = 0.0
        self.bytes = 0
        self.steps = 0  # number of steps that have such a call
        self.first_steps: list[int] = []
        self.last_step = 0


class HostWork:
    """The work of a process in its measured steps, by kind, function and phase."""

    def __init__(self) -> None:
        self._work: dict[tuple[str, str, str | None], Work] = {}
        self._sites: dict[tuple[str, str | None], str | None] = {}

    def site_of(self, function: str, event: str | None) -> str | None:
        """Return the user's line that calls a function now; it is looked up for the first call after each event."""
        key = function, event
        if key not in self._sites:
            self._sites[key] = calling_site()
        return self._sites[key]

    def add(self, step: int, phase: str | None, call: StepWork) -> None:
        """Add a call of a measured step."""
        key = call.kind, call.function, phase
        work = self._work.get(key)
        if work is None:
            work = self._work[key] = Work(call.site)
        work.calls += 1
        work.seconds += call.seconds
        work.bytes += call.bytes
        if step != work.last_step:
            work.last_step = step
            work.steps += 1
            if len(work.first_steps) < STEPS_KEPT:
                work.first_steps.append(step)

    def record(self) -> list[JsonObject]:
        """Return the work for rank.json, the longest first."""
        longest_first = sorted(self._work.items(), key=lambda item: -item[1].seconds)
        return [
            {
                "kind": kind,
                "function": function,
                "phase": phase,
                "calls": work.calls,
                "seconds": work.seconds,
                "bytes": work.bytes,
                "steps": work.steps,
                "first_steps": work.first_steps,
                "site": work.site,
            }
            for (kind, function, phase), work in longest_first
        ]


class OpenWork:
    """Calls of the host and samples of the stack in the open step, until their step and phase are known."""

    def __init__(self, host_work: HostWork, stack_samples: StackSamples) -> None:
        self._host_work = host_work
        self._stack_samples = stack_samples
        # Read-only for others. Most steps note nothing, and then nothing needs to be settled, kept or taken.
        self.noted: list[StepWork | StackSample] = []

    @property
    def has_calls(self) -> bool:
        """True if the host did something; a sample may come at any moment and says nothing of that."""
        return any(isinstance(noted, StepWork) for noted in self.noted)

    def add(self, kind: str, function: str, event: str | None, seconds: float, exchanged: Iterable[Any]) -> None:
        """Add a call; `event` is the latest event of the step."""
        site = self._host_work.site_of(function, event)
        self.noted.append(StepWork(kind, function, event, seconds, bytes_of(exchanged), site))

    def add_sample(self, sample: StackSample) -> None:
        """Add a sample. Called on another thread than the other methods."""
        self.noted.append(sample)

    def settle(self, event: str | None) -> None:
        """Set the phase of what was noted last, if it depends on the next event, which is `event`."""
        for noted in reversed(self.noted):
            if noted.event != MAYBE_FORWARD:
                break
            noted.event = FORWARD if event == BACKWARD else NO_PHASE

    def settle_transfer(self) -> None:
        """Set the phase of what was noted since the batch to the forward pass, because no module was called in it."""
        for noted in reversed(self.noted):
            if noted.event != TRANSFER:
                break
            noted.event = FORWARD

    def keep(self, step: Step) -> None:
        """Add what was noted to that of the measured steps, as of `step`, and forget it.

        A step of any window keeps how long garbage was collected while it waited for data.
        """
        for noted in self.noted:
            phase = phase_of(noted.event)
            if isinstance(noted, StepWork) and noted.function == AUTOMATIC and phase == DATA:
                step.garbage_s += noted.seconds
            if step.window != MEASURED:
                continue
            if isinstance(noted, StackSample):
                self._stack_samples.add(phase, noted)
            else:
                self._host_work.add(step.number, phase, noted)
        self.noted.clear()

    def keep_samples_before(self, step: Step, noted: Iterable[StepWork | StackSample]) -> None:
        """Add the samples of what was taken away before the pass that begins with a step, if that is a measured one."""
        if step.window == MEASURED:
            for sample in noted:
                if isinstance(sample, StackSample):
                    self._stack_samples.add_between_passes(sample)

    def take(self, count: int | None = None) -> list[StepWork | StackSample]:
        """Take away what was noted first, which is in no step: so many calls and samples; all of them if it is None."""
        taken = self.noted[:count]
        del self.noted[:count]
        return taken

    def put_back(self, noted: Iterable[StepWork | StackSample]) -> None:
        """Put what was taken before what was noted afterwards."""
        self.noted[:0] = noted


def bytes_of(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors among the arguments of a collective, and of those in lists of tensors.

    >>> bytes_of([torch.zeros(3), [torch.zeros(3), torch.zeros(1)], "text"])
    28
    """
    total = 0
    for value in values:
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, torch.Tensor):
                total += part.numel() * part.element_size()
    return total

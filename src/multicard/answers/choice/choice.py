"""A choice: a training in one configuration, with how fast it is and how it compares with other choices."""

from dataclasses import dataclass, field
from typing import Any

from multicard.answers.choice.learning import Changes, Learning, key_of
from multicard.programs.program import BATCH
from multicard.results.configuration import Configuration
from multicard.stats.interval import Interval, verdict

HOUR_S = 3600


@dataclass(frozen=True)
class Gain:
    """How much faster a choice is than another one on as many devices that trains like the reference."""

    # Speed over that of the other choice. Both are the fastest of their families, and the p-value takes into account
    # that the same values picked them.
    ratio: Interval
    instead_of: Learning  # the `learning` of the other choice


@dataclass(frozen=True)
class Choice:
    """A training in one configuration: a row of the tables that `choices.choices` returns.

    Intervals have a coverage of 95%, and their width follows from the scatter of the configurations of the same
    scenario. The interval of a single repeat has no bounds. `changes`, `ratio`, `rivals` and `gain` compare the choice
    with other choices of the job; `families` sets them.
    """

    configuration: Configuration
    learning: Learning
    rate: Interval  # measured throughput, in units of work per second
    time_s: Interval  # seconds of the whole training
    speedup: Interval | None  # over its baseline on one device; None without a baseline
    memory_bytes: float | None  # most memory used on a device, in any repeat; None if not recorded
    # The entries of `learning` that differ from those of the reference training; empty if none does.
    changes: Changes = field(default_factory=dict)
    # Speed over that of the fastest choice of its family; None for the fastest itself. The p-value takes into account
    # that the same values picked the fastest.
    ratio: Interval | None = None
    rivals: int = 0  # number of choices of its family, this one included
    gain: Gain | None = None  # None unless it is the fastest of its family and another family is the baseline

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of its configuration."""
        return self.configuration.key

    @property
    def family(self) -> tuple[Any, ...]:
        """A key that is equal for choices of the same training on as many devices, so that only their speed matters."""
        return key_of(self.learning), self.devices

    @property
    def trains_like_reference(self) -> bool:
        """True if it learns as the reference does, or with another global batch, as under weak scaling."""
        return set(self.changes) <= {BATCH}

    @property
    def is_worse(self) -> bool:
        """True if it is shown to be slower than the fastest of its family."""
        return verdict(self.ratio) == "less"

    @property
    def devices(self) -> int:
        """Number of GPUs, or of CPU processes."""
        return self.configuration["devices"]

    @property
    def device_hours(self) -> float:
        """Hours of the whole training, summed over devices."""
        return self.time_s.value * self.devices / HOUR_S

"""A choice: a training in one configuration, with how fast it is and how it compares with other choices."""

from dataclasses import dataclass, field
from typing import Any

from multicard.analysis.choice.learning import Changes, Learning, key_of
from multicard.experiment.workload import BATCH
from multicard.results.configuration import Configuration
from multicard.stats.interval import Interval, verdict

HOUR_S = 3600


@dataclass(frozen=True)
class Gain:
    """What a choice that changes what is learned gains over the fastest one that does not, on as many devices."""

    ratio: Interval  # times as fast, with a p-value that allows for both having been chosen from several
    instead_of: Learning  # of the choice that it is compared with


@dataclass(frozen=True)
class Choice:
    """A training in one configuration. Made by `choices.choices`, a row of its tables.

    Intervals are of 95%, by the scatter of all configurations of the job; one repeat has no bounds. `changes`, `ratio`,
    `rivals` and `gain` are by comparison with other choices of the job (`families`).
    """

    configuration: Configuration
    learning: Learning
    rate: Interval  # measured throughput, in units of work per second
    time_s: Interval  # of the whole training
    speedup: Interval | None  # over one device; None where nothing ran on one
    memory_bytes: float | None  # peak of a device
    # What it learns otherwise than the reference does.
    changes: Changes = field(default_factory=dict)
    # Speed over that of the fastest of its family, with a p-value that allows for that having been chosen; None of the
    # fastest itself.
    ratio: Interval | None = None
    rivals: int = 0  # choices of its family, itself included
    gain: Gain | None = None  # of the fastest of a family with changes

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of its configuration."""
        return self.configuration.key

    @property
    def family(self) -> tuple[Any, ...]:
        """A key that is equal for choices of the same training on as many devices: only speed decides between them."""
        return key_of(self.learning), self.devices

    @property
    def trains_like_reference(self) -> bool:
        """True if it learns as the reference does, at most with a batch that grows with the devices."""
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
        """Hours of all devices together."""
        return self.time_s.value * self.devices / HOUR_S

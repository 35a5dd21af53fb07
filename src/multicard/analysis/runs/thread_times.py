"""How long the threads of training loops ran, waited for a CPU, or were blocked, by phase of their step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.core.layout import PHASES

EVALUATION = "evaluation"
OTHER = "other"  # in no phase


@dataclass(frozen=True)
class ThreadTimes:
    """Seconds of measured steps, summed over ranks, by phase or `OTHER`."""

    wall: Mapping[str, float]
    ran: Mapping[str, float]
    waited: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of all phases and ranks."""
        return sum(self.wall.values())

    def waiting(self, phases: Iterable[str]) -> float:
        """Part of the time of some phases in which a rank was ready to run and had no CPU."""
        wall = sum(self.wall.get(each, 0.0) for each in phases)
        return sum(self.waited.get(each, 0.0) for each in phases) / wall if wall > 0 else 0.0

    def blocked(self, phases: Iterable[str]) -> float:
        """Seconds of some phases in which a rank neither ran nor waited for a CPU."""
        return sum(self.wall[each] - self.ran[each] - self.waited[each] for each in phases if each in self.wall)


def thread_times(record: Mapping[str, Any]) -> ThreadTimes | None:
    """What the ranks recorded of their threads; None unless all did.

    The kernel tells for all of a rank's steps how long it waited for a CPU. This wait is divided among phases as the
    time that the thread ran is, as far as the rest of a phase is long enough: who runs longer is preempted more often.
    """
    times = [(rank.get("observed") or {}).get("thread_time") for rank in record.get("ranks") or []]
    names = (*PHASES, EVALUATION)
    if not times or any(not each or not any(f"{name}_ran_s" in each for name in names) for each in times):
        return None
    parts = [*names, OTHER]
    sums = np.zeros((3, len(parts)))
    for each in times:
        wall, ran = (np.array([each.get(f"{name}{end}", 0.0) for name in names]) for end in ("_s", "_ran_s"))
        wall, ran = (
            np.append(known, max(0.0, each[whole] - known.sum()))
            for known, whole in ((wall, "wall_s"), (ran.clip(min=0.0), "ran_s"))
        )
        ran = np.minimum(ran, wall)
        sums += wall, ran, _divided(each["waited_for_cpu_s"], ran, wall - ran)
    if not sums.any():
        return None
    return ThreadTimes(*(dict(zip(parts, values, strict=True)) for values in sums.tolist()))


def _divided(total: float, weights: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Divide a total by weights into parts that have limits; what is above one goes where less is."""
    parts = np.minimum(most, total * weights / max(weights.sum(), 1e-12))
    left = most - parts
    return parts + left * min(1.0, max(0.0, total - parts.sum()) / max(left.sum(), 1e-12))

"""The choice of the profiler that a job runs under."""

from dataclasses import dataclass

from multicard.core.errors import UserError
from multicard.profilers import PROFILERS
from multicard.profilers.interface import Availability, Profiler, UsedProfiler


@dataclass(frozen=True)
class ProfilerChoice:
    """The profiler of a job and why it was chosen; made by `choose_profiler`.

    `caveat`: why it may record too little; None if nothing speaks against it.
    """

    name: UsedProfiler
    why: str
    caveat: str | None = None


def choose_profiler(
    wanted: str, device: str, hidden: str | None = None, interpreter: str | None = None
) -> ProfilerChoice:
    """Return the profiler `wanted`, even with a caveat; for `auto` the first in `PROFILERS` that is usable without one.

    `device`: what the job trains on (cpu, cuda). `hidden`: why a profiler that runs the job as its child would not see
    the ranks; None if it would. `interpreter`: path of the ranks' Python; None for this process's.

    Raises `UserError` if the profiler `wanted` cannot be used, or with `auto` if no profiler can.
    """
    is_stated = wanted in PROFILERS
    rejections: list[str] = []
    for profiler in [PROFILERS[wanted]] if is_stated else PROFILERS.values():
        usable, why, caveat = _availability(profiler, device, hidden, interpreter)
        if usable and is_stated:
            return ProfilerChoice(profiler.name, "; ".join(filter(None, ("as configured", why, caveat))), caveat)
        if usable and caveat is None:
            return ProfilerChoice(profiler.name, why or "; ".join(rejections))
        rejections.append(caveat or why)
    subject = f"{wanted} cannot" if is_stated else "none can"
    raise UserError(f"profiler: {subject} be used: {'; '.join(rejections)}")


def _availability(profiler: Profiler, device: str, hidden: str | None, interpreter: str | None) -> Availability:
    if hidden and profiler.node_file:
        return Availability(False, f"{profiler.name} would see no rank: {hidden}")
    return profiler.availability(device, interpreter)

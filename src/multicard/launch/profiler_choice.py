"""Which profiler a job runs under."""

from dataclasses import dataclass

from multicard.core.errors import UserError
from multicard.profilers import PROFILERS
from multicard.profilers.interface import Availability, Profiler, UsedProfiler


@dataclass(frozen=True)
class ProfilerChoice:
    """The profiler of a job, the reason for it, and why it may record too little; made by `choose_profiler`."""

    name: UsedProfiler
    why: str
    caveat: str | None = None


def choose_profiler(
    wanted: str, device: str, hidden: str | None = None, interpreter: str | None = None
) -> ProfilerChoice:
    """Return the profiler `wanted`, or for `auto` the first that can be used without a caveat.

    `device`: what the job trains on (cpu, cuda). `hidden`: why a profiler that runs the job as its child would not see
    its ranks. `interpreter`: Python of the ranks, if not this one.

    Raises `UserError` if the profiler that was asked for cannot be used, or with `auto` none.
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

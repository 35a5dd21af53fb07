"""Where each device's time goes: unions of intervals, never sums over streams."""

from dataclasses import dataclass

import pandas as pd

from multicard.trace.intervals import Intervals, clip, difference, either, intersection, total, union

CAPTURE = "capture"

SHARES = ("span", "busy", "compute", "communication", "memory", "overlapped", "exposed_communication", "idle")


@dataclass(frozen=True)
class DeviceActivity:
    """Moments at which one device of one process computes, communicates and moves memory."""

    compute: Intervals
    communication: Intervals
    memory: Intervals

    def within(self, start: int, end: int) -> "DeviceActivity":
        """The part between two moments."""
        return DeviceActivity(*(clip(part, start, end) for part in (self.compute, self.communication, self.memory)))

    def seconds(self, start: int, end: int) -> dict[str, float]:
        """Seconds of each of `SHARES` between two moments (nanoseconds).

        Busy is any activity; overlapped is communication while the device also computes, exposed is
        communication while it does not; idle is the rest of the span.
        """
        part = self.within(start, end)
        busy = total(either(either(part.compute, part.communication), part.memory))
        nanoseconds = {
            "span": end - start,
            "busy": busy,
            "compute": total(part.compute),
            "communication": total(part.communication),
            "memory": total(part.memory),
            "overlapped": total(intersection(part.communication, part.compute)),
            "exposed_communication": total(difference(part.communication, part.compute)),
            "idle": end - start - busy,
        }
        return {name: value / 1e9 for name, value in nanoseconds.items()}


def timelines(kernels: pd.DataFrame | None, memory: pd.DataFrame | None, steps: pd.DataFrame | None) -> pd.DataFrame:
    """One row per process, device and scope: the whole capture, then every step of that process.

    Parameters
    ----------
    kernels, memory
        Device events with process, device, start_ns and end_ns; kernels with class. None: not recorded.
    steps
        Step ranges with process, step, start_ns and end_ns. A device's activity counts to the step during which it
        happens, whichever step launched it.

    The capture of a process spans from its first to its last device event or step.
    """
    devices = _activities(kernels, memory)
    rows = []
    for (process, device), (activity, first, last) in devices.items():
        own = steps[steps["process"] == process] if steps is not None else None
        if own is not None and len(own):
            first, last = min(first, int(own["start_ns"].min())), max(last, int(own["end_ns"].max()))
        scopes = [(CAPTURE, None, first, last)]
        if own is not None:
            scopes += [("step", row.step, int(row.start_ns), int(row.end_ns)) for row in own.itertuples()]
        for scope, step, start, end in scopes:
            shares = {f"{name}_s": value for name, value in activity.seconds(start, end).items()}
            rows.append({"process": process, "device": device, "scope": scope, "step": step, **shares})
    columns = ["process", "device", "scope", "step", *(f"{name}_s" for name in SHARES)]
    return pd.DataFrame(rows, columns=columns).astype({"step": "Int64"})


def _activities(
    kernels: pd.DataFrame | None, memory: pd.DataFrame | None
) -> dict[tuple[int, int], tuple[DeviceActivity, int, int]]:
    """Activity of each process and device, with its first and last moment."""
    parts = []
    if kernels is not None:
        communicates = kernels["class"] == "communication"
        parts.append(kernels.assign(kind=communicates.map({True: "communication", False: "compute"})))
    if memory is not None:
        parts.append(memory.assign(kind="memory"))
    if not parts:
        return {}
    found = {}
    events = pd.concat(parts)[["process", "device", "kind", "start_ns", "end_ns"]]
    for key, own in events.groupby(["process", "device"], sort=True):
        sets = []
        for kind in ("compute", "communication", "memory"):
            these = own[own["kind"] == kind]
            sets.append(union(these["start_ns"].to_numpy(), these["end_ns"].to_numpy()))
        found[key] = (DeviceActivity(*sets), int(own["start_ns"].min()), int(own["end_ns"].max()))
    return found

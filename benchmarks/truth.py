"""What a reader of the synthetic trace must find, computed from the simulated arrays by other means than a reader's.

Durations are grouped by masks; times of a device come from one sweep over all borders of activities; the causes of idle
time from a walk over the activities in the order of their start. Integer nanoseconds throughout.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from catalogue import FUNCTIONS, MEMORY_KINDS, RANGES, STEP, Catalogue
from simulation import MAIN_THREAD, Columns

COMPUTE, COMMUNICATION, MEMORY = range(3)
# Idle while the host has not launched what comes next; while what comes next waits on the device; while nobody knows.
CAUSES = ("idle_host", "idle_queued", "idle_unknown")
NEVER = np.iinfo(np.int64).max


@dataclass
class History:
    """All that one process did.

    kernels: start, end, call_start, call_end, recorded, shape, stream, thread; memory: start, end, call_start,
    call_end, kind, bytes, stream; calls: duration, function; ranges: start, end, name. All have in_steps: whether the
    host did it in a step.
    """

    process: int
    device: int
    kernels: Columns
    memory: Columns
    calls: Columns
    ranges: Columns

    def of_steps(self) -> "History":
        """What the host did in steps."""
        parts = {part: getattr(self, part) for part in ("kernels", "memory", "calls", "ranges")}
        return replace(self, **{part: {key: own[key][own["in_steps"]] for key in own} for part, own in parts.items()})


def truth_of(histories: list[History], catalogue: Catalogue) -> dict[str, Any]:
    """Every expected table; the keys are those of the truth file. Those `of_steps` are of the scope of steps."""
    tables: dict[str, Any] = {
        "synthetic": True,
        "kernels_rows": sum(len(history.kernels["start"]) for history in histories),
        "api_rows": sum(len(history.calls["duration"]) for history in histories),
    }
    parts = {
        "cuda_api": calls,
        "kernels": kernels,
        "memory_operations": memory_operations,
        "ranges": ranges,
        "launches": launches,
        "timeline": timeline,
    }
    for key, part in parts.items():
        tables[key] = [row for history in histories for row in part(history, catalogue)]
    of_steps = [history.of_steps() for history in histories]
    tables["of_steps"] = {
        key: [row for history in of_steps for row in parts[key](history, catalogue)]
        for key in ("cuda_api", "kernels", "memory_operations", "launches")
    }
    return tables


def describe(durations: np.ndarray) -> dict[str, Any]:
    """Count, sum, median, extremes and sample standard deviation."""
    return {
        "calls": len(durations),
        "total": int(durations.sum()),
        "median": float(np.median(durations)),
        "min": int(durations.min()),
        "max": int(durations.max()),
        "std": float(durations.std(ddof=1)) if len(durations) > 1 else None,
    }


def calls(history: History, _: Catalogue) -> list[dict[str, Any]]:
    """Per API function, without the version that exports add to names of the runtime."""
    function = history.calls["function"]
    names = [re.sub(r"_v\d{4,5}$", "", function.name) for function in FUNCTIONS]
    return [
        {"process": history.process, "api": FUNCTIONS[number].api, "function": names[number]}
        | describe(history.calls["duration"][function == number])
        for number in np.unique(function)
    ]


def kernels(history: History, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Per kernel name."""
    name = catalogue.name[history.kernels["shape"]]
    duration = history.kernels["end"] - history.kernels["start"]
    where = {"process": history.process, "device": history.device}
    return [
        where | {"kernel": catalogue.kernels[number]["kernel"]} | describe(duration[name == number])
        for number in np.unique(name)
    ]


def memory_operations(history: History, _: Catalogue) -> list[dict[str, Any]]:
    """Per operation and kind of host memory."""
    kind, size = history.memory["kind"], history.memory["bytes"]
    duration = history.memory["end"] - history.memory["start"]
    return [
        {
            "process": history.process,
            "device": history.device,
            "operation": MEMORY_KINDS[number].operation,
            "host_memory": MEMORY_KINDS[number].host_memory,
            "bytes": int(size[kind == number].sum()),
        }
        | describe(duration[kind == number])
        for number in np.unique(kind)
    ]


def ranges(history: History, _: Catalogue) -> list[dict[str, Any]]:
    """Per NVTX range; `domain` is null for the default domain."""
    name = history.ranges["name"]
    duration = history.ranges["end"] - history.ranges["start"]
    return [
        {
            "process": history.process,
            "domain": "NCCL" if RANGES[number].startswith("nccl") else None,
            "name": RANGES[number],
            "calls": int((name == number).sum()),
            "total": int(duration[name == number].sum()),
        }
        for number in np.unique(name)
    ]


def launches(history: History, _: Catalogue) -> list[dict[str, Any]]:
    """How long after its call a kernel began, over the kernels whose call was recorded."""
    of = {key: column[history.kernels["recorded"]] for key, column in history.kernels.items()}
    row: dict[str, Any] = {
        "process": history.process,
        "device": history.device,
        "kernels": len(history.kernels["start"]),
        "joined": len(of["start"]),
    }
    for key, since in (("latency", of["call_start"]), ("queue_delay", of["call_end"])):
        waited = of["start"] - since
        row[f"median_{key}"] = float(np.median(waited)) if len(waited) else None
        row[f"max_{key}"] = int(waited.max()) if len(waited) else None
    return [row]


def timeline(history: History, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Where the device's time went, over the capture and per step."""
    kernel, memory = history.kernels, history.memory
    times = ("start", "end", "call_start", "call_end")
    start, end, call, returned = (np.concatenate((kernel[key], memory[key])) for key in times)
    call[: len(kernel["start"])][~kernel["recorded"]] = NEVER
    group = np.full(len(start), MEMORY, np.int8)
    group[: len(kernel["start"])] = np.where(catalogue.is_collective[kernel["shape"]], COMMUNICATION, COMPUTE)

    steps = history.ranges["name"] == STEP
    step_start, step_end = history.ranges["start"][steps], history.ranges["end"][steps]
    capture = (min(int(start.min()), int(step_start.min())), max(int(end.max()), int(step_end.max())))
    # Of the streams that other threads or only copies use, no step waits.
    stream = np.concatenate((kernel["stream"], memory["stream"]))
    used = np.unique(kernel["stream"][kernel["recorded"] & (kernel["thread"] == MAIN_THREAD)])
    own = np.isin(stream, used) if len(used) else np.ones(len(stream), bool)
    steps_of_device = [
        tuple(device_moment(moment, call[own], end[own]) for moment in step)
        for step in zip(step_start.tolist(), step_end.tolist(), strict=True)
    ]
    scopes = [capture, *steps_of_device]

    occupied = occupation(start, end, group, np.array(scopes))
    idle = idle_causes(start, end, call, returned, np.array(scopes))
    rows = []
    for number, (first, last) in enumerate(scopes):
        row: dict[str, Any] = {
            "process": history.process,
            "device": history.device,
            "scope": "step" if number else "capture",
            "step": number or None,
            "span": last - first,
        }
        row |= {key: int(times[number]) for key, times in occupied.items()}
        row["idle"] = row["span"] - row["busy"]
        row |= {cause: int(times[number]) for cause, times in zip(CAUSES, idle, strict=True)}
        if sum(row[cause] for cause in CAUSES) != row["idle"]:
            raise AssertionError(f"the sweep and the walk disagree on idle time: {row}")
        rows.append(row)
    return rows


def device_moment(moment: int, call: np.ndarray, end: np.ndarray) -> int:
    """When the host has come to a moment and the device has done all that was launched before it."""
    return max(moment, int(end[call < moment].max(initial=0)))


def occupation(start: np.ndarray, end: np.ndarray, group: np.ndarray, scopes: np.ndarray) -> dict[str, np.ndarray]:
    """Times per scope (rows of begin, end) in which groups are active: one sweep over all begins and ends."""
    times = np.concatenate((start, end, scopes.ravel()))
    order = np.argsort(times)
    times = times[order]
    lengths = np.append(np.diff(times), 0)

    def active(number: int) -> np.ndarray:
        change = (group == number).astype(np.int8)
        return np.cumsum(np.concatenate((change, -change, np.zeros(scopes.size, np.int8)))[order], dtype=np.int32) > 0

    compute, communication, memory = active(COMPUTE), active(COMMUNICATION), active(MEMORY)

    def within_scopes(mask: np.ndarray) -> np.ndarray:
        before = np.concatenate(([0], np.cumsum(lengths * mask)))
        return np.diff(before[np.searchsorted(times, scopes)])[:, 0]

    return {
        "busy": within_scopes(compute | communication | memory),
        "compute": within_scopes(compute),
        "communication": within_scopes(communication),
        "memory": within_scopes(memory),
        "overlapped": within_scopes(communication & compute),
        "exposed_communication": within_scopes(communication & ~compute),
    }


def idle_causes(
    start: np.ndarray, end: np.ndarray, call: np.ndarray, returned: np.ndarray, scopes: np.ndarray
) -> list[np.ndarray]:
    """Idle time per cause and scope; the first scope is the whole capture, `call` is NEVER where none was recorded.

    A gap is judged by the activity that ends it, of several that begin together the one whose call began first: until
    that call returned the gap is the host's, after that it is the device's. After the last activity it is the host's.
    """
    order = np.lexsort((call, start))
    start, call, returned = start[order], call[order], returned[order]
    busy_until = np.maximum.accumulate(end[order])
    gap_start = np.concatenate((scopes[0, :1], busy_until))
    gap_end = np.concatenate((start, scopes[0, 1:]))
    recorded = np.append(call != NEVER, True)
    of_host = np.append(np.minimum(returned, start), scopes[0, 1])
    of_host = np.maximum(gap_start, np.where(recorded, of_host, gap_start))
    parts = {
        "idle_host": (gap_start, of_host),
        "idle_queued": (np.where(recorded, of_host, gap_end), gap_end),
        "idle_unknown": (np.where(recorded, gap_end, gap_start), gap_end),
    }
    times = np.zeros((len(CAUSES), len(scopes)), np.int64)
    for number, cause in enumerate(CAUSES):
        first, last = parts[cause]
        for scope, (begin, stop) in enumerate(scopes):
            within = np.minimum(last, stop) - np.maximum(first, begin)
            times[number, scope] = np.maximum(within, 0).sum()
    return list(times)

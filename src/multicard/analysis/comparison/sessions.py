"""Sessions of measurement: which runs share what their repeats do not show.

Runs of a session, on one machine without a long pause, have in common where a node placed memory, how warm it was, and
what else it did that day.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

PAUSE_S = 3600.0  # between the end of a run and the start of the next, from which on it is another session
NUMBERED = re.compile(r"host-\d+")  # what an archive calls a host: in every archive the first is `host-1`

Record = Mapping[str, Any]  # of a run, as run.json holds it


def sessions_of(sides: Sequence[Mapping[str, Record]]) -> list[dict[str, int]]:
    """Return the number of the session of each run that says when it ran, by its id, for each set of records.

    A session ends when the machine changes, or `PAUSE_S` after the last of its runs has ended.
    """
    sessions: list[dict[str, int]] = [{} for _ in sides]
    timed = sorted(
        (_machines(record, side), start, end, side, run)
        for side, records in enumerate(sides)
        for run, record in records.items()
        if (start := _time(record, "started")) is not None and (end := _time(record, "ended")) is not None
    )
    session, previous_machines, latest_end = 0, None, 0.0
    for machines, start, end, side, run in timed:
        if machines != previous_machines or start - latest_end > PAUSE_S:
            session, latest_end = session + 1, end
        # A run may end before one that started earlier, as on other GPUs of the node.
        previous_machines, latest_end = machines, max(latest_end, end)
        sessions[side][run] = session
    return sessions


def tells_machine(record: Record) -> bool:
    """Return whether the record identifies the machine of its run beyond the results that hold it."""
    return all(host.get("machine_digest") or _is_name(host.get("name")) for host in _hosts(record))


def _machines(record: Record, side: int) -> tuple[str, ...]:
    """Return what identifies each node of a run, in any order of these; a machine that is not told is one of its side.

    The digest decides where there is one. Without it, as of synthetic runs, the name does; the names in an archive tell
    its machines from each other, but not from those of other results.
    """
    machines = []
    for host in _hosts(record):
        name = host.get("name")
        by_name = f"name {name}" if _is_name(name) else f"side {side}: {name}"
        machines.append(f"digest {host['machine_digest']}" if host.get("machine_digest") else by_name)
    return tuple(sorted(machines))


def _hosts(record: Record) -> list[Record]:
    """Return the host of each node of a run; one without entries where the record has none."""
    nodes = [node for node in record.get("nodes") or () if node]
    return [each.get("host") or {} for each in nodes or [record]]


def _is_name(name: str | None) -> bool:
    return name is not None and not NUMBERED.fullmatch(name)


def _time(record: Record, name: str) -> float | None:
    try:
        return datetime.fromisoformat(record[name]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None

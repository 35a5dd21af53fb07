"""Sessions of measurement: which runs share what their repeats do not show.

Runs of a session, on one machine without a long pause, have in common where a node placed memory, how warm it was, and
what else it did that day.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from multicard.runs.record import Host, RunRecord

PAUSE_S = 3600.0  # between the end of a run and the start of the next, from which on it is another session
NUMBERED = re.compile(r"host-\d+")  # what an archive calls a host: in every archive the first is `host-1`


def sessions_of(sides: Sequence[Mapping[str, RunRecord]]) -> list[dict[str, int]]:
    """Return the number of the session of each run that says when it ran, by its id, for each set of records.

    A session ends when the machine changes, or `PAUSE_S` after the last of its runs has ended.
    """
    sessions: list[dict[str, int]] = [{} for _ in sides]
    timed = sorted(
        (_machines(record, side), start, end, side, run)
        for side, records in enumerate(sides)
        for run, record in records.items()
        if (start := _seconds(record.started)) is not None and (end := _seconds(record.ended)) is not None
    )
    session, previous_machines, latest_end = 0, None, 0.0
    for machines, start, end, side, run in timed:
        if machines != previous_machines or start - latest_end > PAUSE_S:
            session, latest_end = session + 1, end
        # A run may end before one that started earlier, as on other GPUs of the node.
        previous_machines, latest_end = machines, max(latest_end, end)
        sessions[side][run] = session
    return sessions


def tells_machine(record: RunRecord) -> bool:
    """Return whether the record identifies the machine of its run beyond the results that hold it."""
    return all(host.machine_digest or _is_name(host.name) for host in _hosts(record))


def _machines(record: RunRecord, side: int) -> tuple[str, ...]:
    """Return what identifies each node of a run, sorted; a machine that is not told is one of its side.

    The digest decides where there is one. Without it, as of synthetic runs, the name does; the names in an archive tell
    its machines from each other, but not from those of other results.
    """
    machines = []
    for host in _hosts(record):
        by_name = f"name {host.name}" if _is_name(host.name) else f"side {side}: {host.name}"
        machines.append(f"digest {host.machine_digest}" if host.machine_digest else by_name)
    return tuple(sorted(machines))


def _hosts(record: RunRecord) -> list[Host]:
    """Return the host of each node of a run; one without a name where the record has none."""
    if record.nodes:
        return [node.host or Host() for node in record.nodes]
    return [record.host or Host()]


def _is_name(name: str | None) -> bool:
    return name is not None and not NUMBERED.fullmatch(name)


def _seconds(time: str | None) -> float | None:
    """Return a time of a record in seconds since 1970; None where there is none."""
    try:
        return datetime.fromisoformat(time).timestamp() if time else None
    except ValueError:
        return None

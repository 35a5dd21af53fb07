"""Sessions of measurement: which runs share what their repeats do not show.

Runs of a session, on one machine without a long pause, have in common where a node placed memory, how warm it was, and
what else it did that day.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from multicard.runs.record import Host, RunRecord

# Pause between the end of a run and the start of the next, in seconds, that separates two sessions.
PAUSE_S = 3600.0
# Name that an archive gives to a host: in every archive the first is `host-1`.
NUMBERED = re.compile(r"host-\d+")


class _TimedRun(NamedTuple):
    """When and where a run ran; runs are in the order of these fields."""

    machines: tuple[str, ...]
    start_s: float
    end_s: float
    side: int
    run: str


def sessions_of(sides: Sequence[Mapping[str, RunRecord]]) -> list[dict[str, int]]:
    """Return the number of the session of each run that says when it ran, by its id, for each set of records.

    A session ends when the machine changes, or `PAUSE_S` after the last of its runs has ended.
    """
    sessions: list[dict[str, int]] = [{} for _ in sides]
    timed_runs = [timed_run for side, records in enumerate(sides) for timed_run in _timed_runs(side, records)]
    session, previous_machines, latest_end_s = 0, None, 0.0
    for run in sorted(timed_runs):
        is_elsewhere = run.machines != previous_machines
        if is_elsewhere or run.start_s - latest_end_s > PAUSE_S:
            session += 1
            latest_end_s = run.end_s
        # A run may end before one that started earlier, as on other GPUs of the node.
        latest_end_s = max(latest_end_s, run.end_s)
        previous_machines = run.machines
        sessions[run.side][run.run] = session
    return sessions


def identifies_machine(record: RunRecord) -> bool:
    """Return whether the record identifies the machine of its run beyond the results that hold it."""
    return all(host.machine_digest or _is_name(host.name) for host in _hosts(record))


def _timed_runs(side: int, records: Mapping[str, RunRecord]) -> Iterator[_TimedRun]:
    """Yield the runs of a set of records that say when they began and ended."""
    for run, record in records.items():
        start_s, end_s = _seconds(record.started), _seconds(record.ended)
        if start_s is not None and end_s is not None:
            yield _TimedRun(_machines(record, side), start_s, end_s, side, run)


def _machines(record: RunRecord, side: int) -> tuple[str, ...]:
    """Return what identifies each node of a run, sorted.

    The digest decides where there is one. Without it, as of synthetic runs, the name does. The names in an archive
    distinguish its own machines, but not these from machines of other results, so such a machine is one of its side.
    """
    machines = []
    for host in _hosts(record):
        if host.machine_digest:
            machines.append(f"digest {host.machine_digest}")
        elif _is_name(host.name):
            machines.append(f"name {host.name}")
        else:
            machines.append(f"side {side}: {host.name}")
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

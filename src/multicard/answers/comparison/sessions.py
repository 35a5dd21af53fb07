"""Sessions of measurement: runs on one machine without a long pause between them.

Runs of one session have in common where the node placed memory, how warm it was, and what else it did that day. This
shifts all their times alike, so the scatter of their repeats does not show it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from multicard.runs.record import Host, RunRecord

# A longer pause than this, in seconds, between the end of a run and the start of the next one begins a new session.
PAUSE_S = 3600.0
# Name that an archive gives to a host: in every archive the first is `host-1`.
NUMBERED = re.compile(r"host-\d+")


class _TimedRun(NamedTuple):
    """When and where a run ran. Sorting compares the fields in this order, so runs on one machine are together."""

    machines: tuple[str, ...]
    start_s: float
    end_s: float
    side: int
    run: str


def sessions_of(sides: Sequence[Mapping[str, RunRecord]]) -> list[dict[str, int]]:
    """Return for each set of records the number of the session of each of its runs, by the run's id.

    Runs on the same machines are in one session if each started at most `PAUSE_S` after all earlier ones had ended.
    Runs on other machines in between do not end a session. Sessions are numbered from 1 over all sets together. A run
    whose record does not state when it started and ended has no entry.
    """
    sessions: list[dict[str, int]] = [{} for _ in sides]
    timed_runs = [timed_run for side, records in enumerate(sides) for timed_run in _timed_runs(side, records)]
    session, previous_machines, latest_end_s = 0, None, 0.0
    for run in sorted(timed_runs):
        is_elsewhere = run.machines != previous_machines
        if is_elsewhere or run.start_s - latest_end_s > PAUSE_S:
            session += 1
            latest_end_s = run.end_s
        # A run may end before another one that started earlier, for example on other GPUs of the node.
        latest_end_s = max(latest_end_s, run.end_s)
        previous_machines = run.machines
        sessions[run.side][run.run] = session
    return sessions


def identifies_machine(record: RunRecord) -> bool:
    """Return whether the record identifies the machines of its run, so that other results can name the same ones."""
    return all(host.machine_digest or _is_name(host.name) for host in _hosts(record))


def _timed_runs(side: int, records: Mapping[str, RunRecord]) -> Iterator[_TimedRun]:
    """Yield the runs of a set of records that state when they started and ended."""
    for run, record in records.items():
        start_s, end_s = _seconds(record.started), _seconds(record.ended)
        if start_s is not None and end_s is not None:
            yield _TimedRun(_machines(record, side), start_s, end_s, side, run)


def _machines(record: RunRecord, side: int) -> tuple[str, ...]:
    """Return what identifies each node of a run, sorted.

    It is the digest if there is one, else the name, as for synthetic runs. But names in an archive are numbers, such as
    `host-1`. They distinguish machines of one archive, but may stand for other machines in other results. So the number
    of the side is added to them, and to missing names.
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
    """Return the host of each node of a run; an empty `Host` for a node without one."""
    if record.nodes:
        return [node.host or Host() for node in record.nodes]
    return [record.host or Host()]


def _is_name(name: str | None) -> bool:
    """Return whether a host has a name of its own, not a number that an archive gave to it."""
    return name is not None and not NUMBERED.fullmatch(name)


def _seconds(time: str | None) -> float | None:
    """Return a time of a record in seconds since 1970; None if it is missing or not in ISO format."""
    try:
        return datetime.fromisoformat(time).timestamp() if time else None
    except ValueError:
        return None

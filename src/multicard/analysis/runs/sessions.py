"""Which runs were measured in one session: on one node, without a long pause.

Runs of a session have in common what repeats within it do not show: where a node placed memory, how warm it was, what
else it did that day. How much a configuration is off by that is seen only over several sessions.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

PAUSE_S = 3600.0  # between the end of a run and the start of the next, from which on it is another session

Record = Mapping[str, Any]


def sessions_of(sides: Sequence[Mapping[str, Record]]) -> list[dict[str, int]]:
    """Number of the session of each run that says when it ran, by its id, for each set of records."""
    found: list[dict[str, int]] = [{} for _ in sides]
    timed = sorted(
        (str((record.get("host") or {}).get("name")), start, end, side, run)
        for side, records in enumerate(sides)
        for run, record in records.items()
        if (start := _time(record, "started")) is not None and (end := _time(record, "ended")) is not None
    )
    session, before, until = 0, None, 0.0
    for host, start, end, side, run in timed:
        if host != before or start - until > PAUSE_S:
            session, until = session + 1, end
        before, until = host, max(until, end)
        found[side][run] = session
    return found


def _time(record: Record, name: str) -> float | None:
    try:
        return datetime.fromisoformat(record[name]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None

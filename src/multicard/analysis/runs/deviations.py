"""How a run was executed otherwise than its parameters say, by its record."""

from collections.abc import Mapping
from typing import Any

from multicard.core.reasons import describe_left_behind
from multicard.core.text import counted, printable

LONGEST_NAME = 90  # of a file


def deviation(record: Mapping[str, Any]) -> str | None:
    """In words; None where nothing deviates, or nothing is known."""
    ranks = record.get("ranks") or []
    found = [_uncompiled(ranks), _shared(ranks, (record.get("parameters") or {}).get("devices"))]
    return "; ".join(filter(None, found)) or None


def tear_down_problem(record: Mapping[str, Any]) -> str | None:
    """What went wrong when a run that had completed was to end; None where nothing did."""
    if record.get("outcome") != "completed":
        return None
    told = [f"rank {rank['rank']}: {rank['tear_down_problem']}" for rank in _with(record, "tear_down_problem")]
    if left := record.get("left_behind"):
        told.append(describe_left_behind(left))
    if not told and record.get("ended_at_time_limit"):
        return "its processes did not exit after all ranks had finished, and were ended at the time limit"
    return "; ".join(told) or None


def folder_changes(record: Mapping[str, Any]) -> str | None:
    """Files that a run changed in the folder of its script, in words; None where there are none, or it is not known."""
    found = record.get("folder_changes") or {}
    if not found.get("names"):
        return None
    more = f" and {found['count'] - 1} more" if found["count"] > 1 else ""
    return printable(found["names"][0], LONGEST_NAME) + more


def _with(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [rank for rank in record.get("ranks") or [] if rank.get(name)]


def _uncompiled(ranks: list[Mapping[str, Any]]) -> str | None:
    hits = {hit["limit"]: hit["value"] for rank in ranks for hit in rank.get("compile_limits_hit") or []}
    if not hits:
        return None
    limits = ", ".join(f"{limit} ({value})" for limit, value in hits.items())
    return f"compiled in part only: torch.compile hit its {limits}, and runs the rest uncompiled"


def _shared(ranks: list[Mapping[str, Any]], devices: int | None) -> str | None:
    distinct = {gpu["uuid"] for rank in ranks for gpu in rank.get("gpus") or []}
    if not distinct or devices is None or len(distinct) >= devices:
        return None
    return f"{devices} devices shared {counted(len(distinct), 'distinct GPU')}"

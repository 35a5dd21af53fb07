"""The order in which runs start: one group of scenarios after the other, and within a group in shuffled blocks."""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from multicard.config.runs import Run
from multicard.runs.record import Place


def planned_order(scenarios: Mapping[str, list[Run]], seed: int) -> dict[str, Place]:
    """Return the places of all runs by id, in the order in which the runs start.

    Scenarios that share runs form a group, because each of them compares the shared runs with its own. One group runs
    after the other. Within a group every configuration runs once (block 1), then once more (block 2), and so on. Each
    block has another order of configurations. This is a randomized complete block design: if the machine becomes
    slower, all configurations are affected alike.

    The order is that of the digests of seed and run, so all orders are equally likely over the seeds. If a
    configuration is added to a group, the others keep their order.
    """
    places: dict[str, Place] = {}
    for group in _groups(scenarios):
        sort_keys: dict[str, _SortKey] = {}
        for name in group:
            for run in scenarios[name]:
                sort_keys[run.id] = _SortKey(run.parameters.repeat, _digest(seed, run.id))
        ids = sorted(sort_keys, key=sort_keys.__getitem__)
        for position, run_id in enumerate(ids, start=1):
            places[run_id] = Place(seed=seed, group=group, block=sort_keys[run_id].block, position=position)
    return places


class _SortKey(NamedTuple):
    """The key by which the runs of a group are ordered: first by block, then by `_digest`."""

    block: int
    digest: bytes


class _Group(NamedTuple):
    """Scenarios that share runs, and the ids of all their runs."""

    scenarios: set[str]
    runs: set[str]


def _groups(scenarios: Mapping[str, list[Run]]) -> list[tuple[str, ...]]:
    """Return the groups of scenarios that share runs, directly or through other scenarios of the group.

    The scenarios of a group are in the order of `scenarios`. The groups are in the order of their first scenarios.
    """
    groups: list[_Group] = []
    for name, runs in scenarios.items():
        joined = _Group({name}, {run.id for run in runs})
        apart = []
        for group in groups:
            if group.runs & joined.runs:
                # A scenario may share runs with several groups. Such groups become one.
                joined = _Group(joined.scenarios | group.scenarios, joined.runs | group.runs)
            else:
                apart.append(group)
        groups = [*apart, joined]
    positions = {name: position for position, name in enumerate(scenarios)}
    in_order = [tuple(sorted(group.scenarios, key=positions.__getitem__)) for group in groups]
    return sorted(in_order, key=lambda group: positions[group[0]])


def _digest(seed: int, run_id: str) -> bytes:
    """Return the key by which the runs of a block are ordered."""
    text = json.dumps([seed, run_id])
    return hashlib.sha256(text.encode()).digest()

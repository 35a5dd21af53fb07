"""The order in which runs start: blocks of repeats, shuffled by a seed, scenario group by scenario group."""

import hashlib
import json
from collections.abc import Mapping

from multicard.experiment.runs import Run
from multicard.runs.record import Place


def planned_order(scenarios: Mapping[str, list[Run]], seed: int) -> dict[str, Place]:
    """Return the places of all runs by id, in the order in which the runs start.

    Scenarios that share runs form a group, since each of them compares shared runs with others of its own, and groups
    follow each other. Within a group every configuration runs once (block 1), then again (block 2), each block in an
    order of its own: a randomized complete block design, so that a machine that slows down does so for all
    configurations alike. The order is by a digest of seed and run, and thus uniform over the seeds; a configuration
    that is added to a group leaves the others in the same order.
    """
    places: dict[str, Place] = {}
    for group in _groups(scenarios):
        blocks = {run.id: run.parameters.repeat for name in group for run in scenarios[name]}
        shuffled = sorted(blocks, key=lambda run: (blocks[run], _digest(seed, run)))
        for position, run in enumerate(shuffled, start=1):
            places[run] = Place(seed=seed, group=group, block=blocks[run], position=position)
    return places


def _groups(scenarios: Mapping[str, list[Run]]) -> list[tuple[str, ...]]:
    """Return the groups of scenarios that share runs, directly or through other scenarios of the group.

    Scenarios, and groups by their first scenario, are in the order of `scenarios`.
    """
    ids = {name: {run.id for run in runs} for name, runs in scenarios.items()}
    groups: list[set[str]] = []
    for name in scenarios:
        linked = [group for group in groups if any(ids[name] & ids[member] for member in group)]
        groups = [group for group in groups if group not in linked]
        # A scenario may share runs with several groups, which it then joins.
        groups.append({name}.union(*linked))
    names = list(scenarios)
    ordered = [tuple(sorted(group, key=names.index)) for group in groups]
    return sorted(ordered, key=lambda group: names.index(group[0]))


def _digest(seed: int, run: str) -> bytes:
    return hashlib.sha256(json.dumps([seed, run]).encode()).digest()

"""Configurations of results sorted into series, each with what is known of its machine and of what it exchanges."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from multicard.analysis.evidence import GPU_COUNT, Configuration, Evidence
from multicard.analysis.machine.limits import MachineLimits, fits
from multicard.analysis.runs.per_run import trace_shares
from multicard.analysis.scaling.prediction_series import ALIKE_BUT_FOR, Series, is_known, samples_of_device
from multicard.analysis.scenario_tables import machine
from multicard.experiment.workload import Traffic
from multicard.trace.collectives import SHARDED


def series(evidence: Evidence, machines: Iterable[MachineLimits] = ()) -> list[Series]:
    """Sort configurations into series, those on one device into that of each strategy whose baseline they are."""
    records = list(machines)
    traced = evidence.per_run(trace_shares).to_dict("index")
    known = _joined(each for each in evidence.configurations if each.completed)
    groups: dict[Any, list[Configuration]] = defaultdict(list)
    places: dict[Any, dict[Any, set[int]]] = defaultdict(lambda: defaultdict(set))
    for each in known:
        groups[_shared(each), each[each.workload.method], _place(each)].append(each)
        places[_shared(each), each[each.workload.method]][_place(each)].add(each["devices"])
    found, bases = [], set()
    for (shared, method, place), own in groups.items():
        by_count = {_count(each): each for each in own}
        if (1, 1) not in by_count or max(by_count) > (1, 1):
            for base in own[0].workload.baselines(method):
                alone = [each for each in groups.get((shared, base, place), []) if each["devices"] == 1]
                if alone and base != method and len(by_count.keys() | {(1, 1)}) > 1:
                    by_count.setdefault((1, 1), alone[0])
                    bases.add((shared, base, place))
                    break
        others = {where: counts for where, counts in places[shared, method].items() if where != place}
        elsewhere = "; ".join(
            f"{', '.join(map(str, sorted(counts)))} devices ran on other hardware or versions ({where[0] or 'unknown'})"
            for where, counts in others.items()
            if counts - {count for _, count in by_count}
        )
        batch = own[0].workload.batch_parameters
        batches = [
            each
            for each in known
            if each["devices"] == 1
            and batch
            and _place(each) == place
            and _shared(each, batch) == _shared(own[0], batch)
            and each[each.workload.method] in (method, *own[0].workload.baselines(method))
            and (samples_of_device(each) or 0)
            not in {samples_of_device(one) for one in by_count.values() if one["devices"] == 1}
        ]
        limits = _alike(records, own[0])
        links = next((line for each in limits if (line := fits(each))), {})
        found.append(Series(by_count, batches, traced, links, _collectives(evidence, own), elsewhere or None, limits))
    return [
        each
        for each in found
        if (_shared(each.of), each.of[each.of.workload.method], _place(each.of)) not in bases
        or len(each.configurations) > 1
    ]


def short_names(found: Sequence[Series]) -> list[str]:
    """Name each series by its headline, and by what else distinguishes those with the same one."""
    names = []
    for each in found:
        table = pd.DataFrame([dict(one.of.parameters) for one in found if one.headline == each.headline])
        own = each.of.naming(each.of.workload.varying(table, [name for name in table if name not in ALIKE_BUT_FOR]))
        names.append(", ".join(filter(None, (each.headline, own))) or each.words)
    return names


def _collectives(evidence: Evidence, configurations: Sequence[Configuration]) -> list[Traffic] | None:
    """Collectives of a step by the trace of a run on several devices, whose messages are taken to stay as they are."""
    tables, steps = evidence.table("message_sizes"), evidence.table("runs_info")
    for each in sorted(configurations, key=lambda one: one["devices"]):
        for run in each.completed if each["devices"] > 1 else []:
            rows, info = tables.get(run.run), steps.get(run.run)
            if rows is None or info is None or rows.empty or not is_known(info["traced_steps"].iloc[0]):
                continue
            places = len(rows[["report", "process", "device"]].drop_duplicates())
            per = places * float(info["traced_steps"].iloc[0])
            return [
                Traffic(
                    str(kind),
                    float((own["size_bytes"] * own["calls"]).sum()) / per * (each["devices"] if kind in SHARDED else 1),
                    float(own["calls"].sum()) / per,
                )
                for kind, own in rows.groupby("collective")
            ]
    return None


def _shared(configuration: Configuration, besides: tuple[str, ...] = ()) -> Any:
    """Parameters that the configurations of a series have in common, but for the method."""
    skip = {*ALIKE_BUT_FOR, configuration.workload.method, *besides}
    return tuple((name, value) for name, value in configuration.parameters.items() if name not in skip)


def _place(configuration: Configuration) -> tuple[str | None, str | None]:
    """Kind of hardware, whatever part of it a job was given; and versions, whichever profiler observed it."""
    where = configuration.provenance
    return where.kind, where.software


def _count(configuration: Configuration) -> tuple[int, int]:
    """Numbers of nodes and of devices."""
    return configuration["nodes"] or 1, configuration["devices"]


def _joined(configurations: Iterable[Configuration]) -> list[Configuration]:
    """With all repeats in one, though some were given another part of a machine, or observed by another profiler."""
    found: dict[Any, Configuration] = {}
    for each in configurations:
        key = _shared(each), each[each.workload.method], _place(each), _count(each)
        before = found.get(key)
        found[key] = replace(before, runs=before.runs + each.runs) if before else each
    return list(found.values())


def _alike(records: Iterable[MachineLimits], configuration: Configuration) -> list[MachineLimits]:
    """The records of its kind of machine and of device, the newest first."""
    alike = [
        each
        for each in records
        if each.device == configuration["device"]
        and each.hardware
        and GPU_COUNT.sub("", machine(each.hardware)) == configuration.provenance.kind
    ]
    return sorted(alike, key=lambda each: each.started, reverse=True)

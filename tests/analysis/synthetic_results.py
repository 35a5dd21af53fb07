"""Results folders of synthetic runs, whose truth is known."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from multicard.analysis.choice.recommend import as_markdown
from multicard.analysis.evidence import Evidence, MeasuredRun, read_evidence
from multicard.analysis.runs.breakdown import COLUMNS, complete
from multicard.analysis.runs.measures import MEASURES_OF
from multicard.analysis.runs.per_run import trace_shares
from multicard.analysis.scaling.speedup_tables import add_scaling
from multicard.analysis.scenario_tables import SCHEMAS, ScenarioTables, store
from multicard.core.files import write_json
from multicard.core.text import without_escapes
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import as_columns, run_id

Row = dict[str, Any]

# The machine of paper B.
GPU = {"name": "NVIDIA H100 SXM5 94GB", "memory_bytes": 94_000_000_000, "capability": "9.0"}

EPOCH_IMAGES = 10_000

# Repeats, as factors of a measure. Those of SCATTERED and OTHERWISE are as far apart as they can be in the same block.
STEADY, SCATTERED, OTHERWISE = (0.997, 1.0, 1.003), (0.8, 1.0, 1.25), (1.25, 1.0, 0.8)


def repeated(row: Row, factors: Sequence[float] = STEADY) -> list[Row]:
    """Repeats of a run: its measures times a factor each, and those of STEADY noise of 0.1%, whose geometric mean is 1.

    Without noise the ratios of two steady runs would be equal in all repeats, which is no evidence of anything. Times
    have the inverse of it, since they and rates are of the same work.
    """
    measures = MEASURES_OF[row["workload"]]
    chance = np.random.default_rng(zlib.crc32(repr(sorted(row.items())).encode()))
    noise = chance.normal(0, 0.001 if tuple(factors) == STEADY else 0.0, len(factors))
    noise -= noise.mean()

    def noisy(name: str, value: Any, factor: float, noise: float) -> Any:
        if name not in measures or isinstance(value, bool):
            return value
        is_time = name.endswith("_s") and not name.endswith("_per_s")
        return value * factor * np.exp(-noise if is_time else noise)

    return [
        {name: noisy(name, value, *of_repeat) for name, value in row.items()} | {"repeat": number}
        for number, of_repeat in enumerate(zip(factors, noise.tolist(), strict=True), 1)
    ]


def images(speed: float, scatter: Sequence[float] = STEADY, **others: Any) -> list[Row]:
    """Repeats of a run of image work at so many distinct images per second."""
    row = {"workload": "vision", "dataset": "mnist", "image_size": 224, "strategy": "ddp-ds", "device": "cuda"}
    return repeated(row | {"throughput_samples_per_s": speed} | others, scatter)


def texts(seconds: float, scatter: Sequence[float] = STEADY, **others: Any) -> list[Row]:
    """Repeats of a run that tunes a model of 8 billion weights, with iterations so long."""
    row = {"workload": "llm", "dataset": "hh-rlhf", "model": "llama3-8b", "device": "cuda"}
    made = repeated(
        row | {"iteration_time_s": seconds, "tokens_per_s": others.get("devices", 1) / seconds} | others, scatter
    )
    return [{"parameters": 8_030_000_000, **each} for each in made]


def trained(devices: int, rate: float, factors: tuple[float, ...] = STEADY, **others: Any) -> list[Row]:
    """Return repeats of a vision job that trains with a batch of 64 on so many GPUs together, in images per second."""
    stated = {"scaling": "strong", "batch_size": 64, "estimated_epoch_time_s": EPOCH_IMAGES / rate}
    return images(rate, factors, devices=devices, **stated | others)


def make_results(
    folder: Path,
    *scenarios: Iterable[Row],
    tables: dict[str, list[Row]] | None = None,
    gpu: Row | None = GPU,
    nodes: Sequence[int] = (0, 1),
    source: str = "mnist",
    processor: str = "AMD EPYC 9334",
    recorded: bool = True,
) -> Path:
    """Write what the workflow leaves of scenarios whose runs have these parameters, outcomes and measures.

    Rows of `tables` name their run by its index among all rows, in the key `at`.
    """
    ids, every = [], []
    for number, given in enumerate(scenarios):
        rows = []
        for row in given:
            model, measures = WORKLOADS[row["workload"]].parameters, MEASURES_OF[row["workload"]]
            parameters = model.model_validate({name: row[name] for name in row if name in model.model_fields})
            run = run_id(parameters)
            ids.append(run)
            known = {name: value for name, value in row.items() if name in measures}
            outcome = {"run": run, "outcome": row.get("outcome", "completed"), "reason": None}
            outcome["disturbance"] = row.get("disturbance")
            rows.append(outcome | as_columns(parameters.model_dump()) | dict.fromkeys(measures) | known | _parts(row))
            if recorded:
                _record(folder / "runs" / run, gpu, nodes, source, processor)
        every.append((folder / "scenarios" / f"s{number}", rows))
        every[-1][0].mkdir(parents=True)
    for name, rows in (tables or {}).items():
        schema = pa.schema([("run", pa.string()), *SCHEMAS[name]])
        named = [{**dict.fromkeys(schema.names), **row, "run": ids[row["at"]]} for row in rows]
        store({name: pa.Table.from_pylist(named, schema)}, folder / "scenarios" / "s0")
    for where, rows in every:
        rows = complete(rows, trace_shares(ScenarioTables(where)))
        measures = add_scaling(pd.DataFrame(rows))
        measures.to_csv(where / "measures.csv", index=False)
        measures[["run", "outcome", "reason"]].to_csv(where / "runs.csv", index=False)
    return folder


def _parts(row: Row) -> Row:
    """The breakdown by the phases that a row states; what it does not state computes."""
    known = {name: row[column] for name, column in COLUMNS.items() if column in row}
    if row.get("data_share") is not None:
        known.setdefault("data loading", row["data_share"])
    step = row.get("mean_iteration_time_s")
    computing = "compute" if row.get("devices", 1) == 1 else "compute or communication"
    if step and "transfer_s" in row:
        known["memory operations"] = row["transfer_s"] / step
    if step and (phases := [row[name] for name in ("forward_s", "backward_s", "optimizer_s") if name in row]):
        known[computing] = sum(phases) / step
        known["other"] = max(0.0, 1 - sum(known.values()))
    elif known and computing not in known and "other" not in known:
        known[computing] = 1 - sum(known.values())
    return {COLUMNS[name]: share for name, share in known.items()}


def made(folder: Path, *scenarios: Iterable[Row], **others: Any) -> Evidence:
    """Evidence of such a folder."""
    return read_evidence(make_results(folder, *scenarios, **others))


def said(evidence: Evidence, verbose: bool = True) -> str:
    """Return the recommendations of these runs as a reader of the rendered Markdown sees them."""
    return without_escapes(as_markdown(evidence, verbose))


def with_provenance(evidence: Evidence, **of_run: Callable[[MeasuredRun], Any]) -> Evidence:
    """The same runs, where and with what they ran as these functions say of each."""
    runs = [
        replace(run, provenance=replace(run.provenance, **{name: of(run) for name, of in of_run.items()}))
        for run in evidence.runs
    ]
    return replace(evidence, runs=runs)


def _record(folder: Path, gpu: Row | None, nodes: Sequence[int], source: str, processor: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "hardware": {"gpus": [gpu] * 4 if gpu else [], "processor": processor, "logical_cpus": 128},
        "versions": {"torch": "2.11.0"},
        "profiler": {"used": "nsys"},
        "data": {"source": source},
        "ranks": [{"binding": {"numa_nodes": [node]}} for node in nodes],
    }
    write_json(folder / "run.json", record)

"""Results of runs, made from a few numbers; captures of a profiler are made by `captures.make_trace`.

The results of a scenario, as a question about them reads them. `vision_runs(100)` are three repeats of a run with 100
images per second, a few thousandths apart; parameters and measures of the run are keywords:

    results = make_results(tmp_path, vision_runs(100) + vision_runs(190, devices=2, data_share=0.3))

The folder of such results, for what reads files (commands, the report), here of two scenarios:

    folder = write_results(tmp_path / "results", tuning_runs(0.5), tuning_runs(0.3, devices=2))

A test states the numbers that its expectation follows from, and leaves the rest to the defaults here. What these do
not make: a run directory with every step is written by `script_runs.write_script_run`, and a copy of a real run by
`recorded_runs.add_run`.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic_core import to_jsonable_python

from multicard.answers.choice.recommend import as_markdown
from multicard.answers.scaling.speedup_tables import add_scaling
from multicard.core.files import write_json
from multicard.core.layout import RUN
from multicard.core.text import without_escapes
from multicard.programs import PROGRAMS, parameters_of
from multicard.results.breakdown import StepPart, complete_breakdowns
from multicard.results.configuration import MeasuredRun
from multicard.results.gathering import store
from multicard.results.measure import MEASURES_OF
from multicard.results.per_run import trace_shares
from multicard.results.provenance import as_cells, provenance_of
from multicard.results.results import Results
from multicard.results.tables import RUNS_INFO, SCHEMAS, ScenarioTables, with_run
from multicard.runs.parameters import JobParameters, as_columns, run_id
from multicard.runs.record import RunRecord

# A run: its parameters, measures and outcome by the names that they have in measures.csv.
Row = dict[str, Any]

# The machine of paper B.
GPU = {"name": "NVIDIA H100 SXM5 94GB", "memory_bytes": 94_000_000_000, "capability": "9.0"}

EPOCH_IMAGES = 10_000

# Factors by which the measures of three repeats differ. In each block SCATTERED and OTHERWISE are as far apart as they
# can be.
STEADY, SCATTERED, OTHERWISE = (0.997, 1.0, 1.003), (0.8, 1.0, 1.25), (1.25, 1.0, 0.8)


def repeats_of(row: Row, factors: Sequence[float] = STEADY) -> list[Row]:
    """Return repeats of a run, whose measures are its own times a factor each.

    Those of `STEADY` have noise of 0.1% in addition, whose geometric mean is 1: without it the ratios of two steady
    runs would be equal in all repeats, which shows nothing. Times have the inverse noise of rates, since they are of
    the same work.
    """
    measures = MEASURES_OF[row["workload"]]
    chance = np.random.default_rng(zlib.crc32(repr(sorted(row.items())).encode()))
    deviation = 0.001 if tuple(factors) == STEADY else 0.0
    noise = chance.normal(0, deviation, len(factors))
    noise -= noise.mean()

    def noisy(name: str, value: Any, factor: float, noise: float) -> Any:
        if name not in measures or isinstance(value, bool | str):
            return value
        is_time = name.endswith("_s") and not name.endswith("_per_s")
        return value * factor * np.exp(-noise if is_time else noise)

    repeats = []
    for number, (factor, noise_of_repeat) in enumerate(zip(factors, noise.tolist(), strict=True), start=1):
        measured = {name: noisy(name, value, factor, noise_of_repeat) for name, value in row.items()}
        repeats.append(measured | {"repeat": number})
    return repeats


def vision_runs(images_per_s: float, factors: Sequence[float] = STEADY, **columns: Any) -> list[Row]:
    """Return repeats of a run of the vision program at so many distinct images per second; `columns`: of the row."""
    row = {"workload": "vision", "dataset": "mnist", "image_size": 224, "strategy": "ddp-ds", "device": "cuda"}
    return repeats_of(row | {"throughput_samples_per_s": images_per_s} | columns, factors)


def strong_scaling_runs(
    devices: int, images_per_s: float, factors: Sequence[float] = STEADY, **columns: Any
) -> list[Row]:
    """Return repeats of a vision run whose devices share a batch of 64; an epoch has `EPOCH_IMAGES`."""
    stated = {"scaling": "strong", "batch_size": 64, "estimated_epoch_time_s": EPOCH_IMAGES / images_per_s}
    return vision_runs(images_per_s, factors, devices=devices, **stated | columns)


def tuning_runs(iteration_time_s: float, factors: Sequence[float] = STEADY, **columns: Any) -> list[Row]:
    """Return repeats of a run that tunes a model of 8 billion weights, one token per device and iteration."""
    row = {"workload": "llm", "dataset": "hh-rlhf", "model": "llama3-8b", "device": "cuda"}
    measures = {
        "iteration_time_s": iteration_time_s, "tokens_per_s": columns.get("devices", 1) / iteration_time_s,
    }  # fmt: skip
    return [{"parameters": 8_030_000_000, **repeat} for repeat in repeats_of(row | measures | columns, factors)]


def make_results(folder: Path, *scenarios: Iterable[Row], **options: Any) -> Results:
    """Return the results of scenarios with these runs, read from `folder`; see `write_results`."""
    return Results.read(write_results(folder, *scenarios, **options))


def write_results(
    folder: Path,
    *scenarios: Iterable[Row],
    tables: Mapping[str, list[Row]] | None = None,
    gpu: Row | None = GPU,
    nodes: Sequence[int] = (0, 1),
    source: str = "mnist",
    processor: str = "AMD EPYC 9334",
    recorded: bool = True,
) -> Path:
    """Write into `folder` what the workflow leaves of scenarios s0, s1 and so on; return it.

    Parameters
    ----------
    scenarios
        The runs of each.
    tables
        Rows of gathered tables by the name of the table. They name their run by its index among all rows, in the key
        `at`.
    gpu, nodes, source, processor
        What each run's record states: the kind of its four GPUs, the NUMA nodes of its ranks, where its data come from,
        and its processor.
    recorded
        Whether runs have records.
    """
    ids: list[str] = []
    rows_of: dict[Path, list[Row]] = {}
    stated = [list(scenario) for scenario in scenarios]
    for number, scenario in enumerate(stated):
        place = folder / "scenarios" / f"s{number}"
        place.mkdir(parents=True)
        rows_of[place] = [_measures_row(row) for row in scenario]
        ids += [row["run"] for row in rows_of[place]]
    for name, rows in (tables or {}).items():
        schema = with_run(SCHEMAS[name])
        complete_rows = [{**dict.fromkeys(schema.names), **row, "run": ids[row["at"]]} for row in rows]
        store({name: pa.Table.from_pylist(complete_rows, schema)}, folder / "scenarios" / "s0")
    for number, scenario in enumerate(stated if recorded else []):
        records = [_record(_parameters(row), gpu, nodes, source, processor) for row in scenario]
        for record in records:
            write_run(folder / "runs", record)
        if RUNS_INFO not in (tables or {}) or number > 0:
            info = [{"run": record.run, **as_cells(provenance_of(record))} for record in records]
            table = pa.Table.from_pylist(info, with_run(SCHEMAS[RUNS_INFO]))
            store({RUNS_INFO: table}, folder / "scenarios" / f"s{number}")
    for place, rows in rows_of.items():
        traced = Results(pd.DataFrame(columns=["run"]), scenarios=(ScenarioTables(place),))
        measures = add_scaling(pd.DataFrame(complete_breakdowns(rows, trace_shares(traced))))
        measures.to_csv(place / "measures.csv", index=False)
        measures[["run", "outcome", "reason"]].assign(wall_time_s=None).to_csv(place / "runs.csv", index=False)
    return folder


def _measures_row(row: Row) -> Row:
    """Return a row of measures.csv: what the given one states, and defaults or nothing for the rest."""
    measures = MEASURES_OF[row["workload"]]
    parameters = _parameters(row)
    outcome = {"run": run_id(parameters), "outcome": row.get("outcome", "completed"), "reason": None}
    outcome["disturbance"] = row.get("disturbance")
    stated = {name: value for name, value in row.items() if name in measures}
    return outcome | as_columns(parameters.model_dump()) | dict.fromkeys(measures) | stated | _step_shares(row)


def _parameters(row: Row) -> JobParameters:
    """Return the parameters among the columns of a row."""
    model = PROGRAMS[row["workload"]].parameters
    return model.model_validate({name: row[name] for name in row if name in model.model_fields})


def _step_shares(row: Row) -> Row:
    """Return the breakdown of the step by the phases that a row states; what it does not state computes."""
    shares: dict[str, Any] = {part: row[part.column] for part in StepPart if part.column in row}
    if row.get("data_share") is not None:
        shares.setdefault("data loading", row["data_share"])
    step_s = row.get("mean_iteration_time_s")
    computing = "compute" if row.get("devices", 1) == 1 else "compute or communication"
    if step_s and "transfer_s" in row:
        shares["memory operations"] = row["transfer_s"] / step_s
    phases_s = [row[name] for name in ("forward_s", "backward_s", "optimizer_s") if name in row]
    if step_s and phases_s:
        shares[computing] = sum(phases_s) / step_s
        shares["other"] = max(0.0, 1 - sum(shares.values()))
    elif shares and computing not in shares and "other" not in shares:
        shares[computing] = 1 - sum(shares.values())
    return {StepPart(name).column: share for name, share in shares.items()}


def _record(parameters: JobParameters, gpu: Row | None, nodes: Sequence[int], source: str, processor: str) -> RunRecord:
    gpus = [gpu] * 4 if gpu else []
    return make_run(
        parameters,
        hardware={"gpus": gpus, "processor": processor, "logical_cpus": 128},
        versions={"torch": "2.11.0"},
        profiler={"used": "nsys"},
        data={"source": source},
        ranks=[{"rank": rank, "binding": {"numa_nodes": [node]}} for rank, node in enumerate(nodes)],
    )


def with_provenance(results: Results, **of_run: Callable[[MeasuredRun], Any]) -> Results:
    """Return the same results with fields of each run's provenance as these functions of the run give them."""
    provenances = {}
    for run in results.runs:
        fields = {name: field(run) for name, field in of_run.items()}
        provenances[run.run] = replace(run.provenance, **fields)
    return replace(results, provenances=provenances)


def recommendations(results: Results, verbose: bool = True) -> str:
    """Return the recommendations from these results as a reader of the rendered Markdown sees them."""
    return without_escapes(as_markdown(results, verbose))


RECORD_FIELDS = frozenset(RunRecord.model_fields)
VISION_RUN = {"dataset": "digits", "image_size": 32, "strategy": "ddp-ds"}


def make_run(parameters: JobParameters | dict[str, Any] | None = None, **fields: Any) -> RunRecord:
    """Return the record of a run; fields that are none of the record's are parameters.

    Parts of the record may be given as they are typed or as JSON has them: `hardware={"logical_cpus": 8}`.
    """
    record_fields = {name: value for name, value in fields.items() if name in RECORD_FIELDS}
    changes = {name: value for name, value in fields.items() if name not in RECORD_FIELDS}
    if isinstance(parameters, JobParameters):
        typed = parameters
    else:
        stated = (parameters or {}) | changes
        is_vision = stated.get("workload", "vision") == "vision"
        typed = parameters_of(VISION_RUN | stated if is_vision else stated)
    usual = {"run": run_id(typed), "outcome": "completed", "profiler": {"used": "none"}}
    content = to_jsonable_python(usual | record_fields | {"parameters": {}})
    return RunRecord.model_validate_json(json.dumps(content), context={"parameters": typed})


def write_run(runs: Path, record: RunRecord) -> Path:
    """Write run.json into the directory of a run, below `runs`, and return that directory."""
    folder = runs / record.run
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN, record.as_json())
    return folder

"""Synthetic runs of an experiment, as GPUs would leave them; every name that tells where they ran says "synthetic".

Times follow a simple law: one device computes a batch in a time that grows with its pixels or tokens, devices share
the work perfectly, and each device but the first adds a constant for communication. Memory is the estimate of the run,
collectives have a latency and a bandwidth, and what DPO learns approaches a limit. Nothing was measured.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from generate import generate
from nsys_export import FIRST_PID

from multicard.config.experiment import Experiment
from multicard.config.runs import Run, distinct, expand
from multicard.core.files import FileChecksum, described, read_object, sha256, write_json
from multicard.core.layout import (
    ACTIVITY,
    ACTIVITY_INDEX,
    CAPTURED,
    EPOCH_COLUMNS,
    EPOCHS,
    EXPORTED,
    LOG,
    PHASES,
    RUN,
    STEP_COLUMNS,
    STEPS,
    TRACE,
)
from multicard.programs.machine import Machine
from multicard.runs.parameters import JobParameters
from multicard.runs.record import RankRecord
from multicard.trace.collectives import bus_bandwidth
from multicard.trace.extract import extract_run
from multicard.trace.tables import ACTIVITIES

KERNELS_PER_STEP = 300  # of a device, about those of MobileNet v2 forward and backward
SAMPLES = 60_000
GPU = {"name": "synthetic GPU", "memory_bytes": 80_000_000_000, "capability": "9.0"}
PRECISION = {"fp64": 3.0, "fp32": 1.0, "fp16": 0.6, "bf16": 0.6}
PHASE_SHARES = dict(zip(PHASES, (0.1, 0.05, 0.3, 0.45, 0.1), strict=True))
LATENCY_S, BYTES_PER_S = 20e-6, 150e9  # of a message, and of a rank's link
OUTSIDE_PYTORCH = 600_000_000  # bytes of a GPU that its context and NCCL take
Tables = dict[str, Any]


def write_runs(experiment: Experiment, results: Path, seed: int = 0) -> int:
    """Write every run of an experiment that some machine could run into `results`; give their number."""
    machine = Machine.here().hypothetical()
    runs = {name: run for name, run in distinct(expand(experiment)).items() if run.unsupported_reason(machine) is None}
    with tempfile.TemporaryDirectory() as scratch:
        tables = {
            devices: _activity(Path(scratch) / str(devices), devices)
            for devices in {run.parameters.devices for run in runs.values()}
        }
    for number, (name, run) in enumerate(runs.items()):
        _write_run(results / "runs" / name, run, tables[run.parameters.devices], [seed, number])
    return len(runs)


def _activity(folder: Path, devices: int, steps: int = 20) -> Tables:
    """Activity tables of a synthetic export, and the folder's index of them."""
    trace = folder / TRACE
    trace.mkdir(parents=True)
    generate(trace / "report.sqlite", KERNELS_PER_STEP * devices * steps, devices, steps)
    _write_manifests(trace, None, [described(trace / "report.sqlite")])
    extract_run(folder, [RankRecord(rank=rank, pid=FIRST_PID + rank) for rank in range(devices)])
    tables: Tables = {path.name: pq.read_table(path) for path in (folder / ACTIVITY).glob("*.parquet")}
    tables[ACTIVITY_INDEX] = read_object(folder / ACTIVITY / ACTIVITY_INDEX)
    return tables


def _write_manifests(trace: Path, missing: str | None, files: list[FileChecksum]) -> None:
    """Write the lists of the captured and the exported files of a trace; `missing`: why there are none."""
    manifest = {"profiler": "nsys", "missing": missing, "files": files}
    write_json(trace / CAPTURED, manifest)
    write_json(trace / EXPORTED, manifest | {"captured_sha256": sha256(trace / CAPTURED)})


def _write_run(folder: Path, run: Run, tables: Tables, seed: list[int]) -> None:
    p, rng = run.parameters, np.random.default_rng(seed)
    memory = run.device_memory_bytes() or 500_000_000
    step_s = _step_time(p) * rng.normal(1, 0.01)
    (folder / TRACE).mkdir(parents=True)
    _write_manifests(folder / TRACE, "synthetic", [])
    (folder / LOG).write_text("synthetic\n")
    steps = pd.concat(_steps(p, step_s, memory, rng))
    steps.to_csv(folder / STEPS, index=False)
    _epochs(p, step_s).to_csv(folder / EPOCHS, index=False)
    write_json(folder / RUN, _record(folder.name, p, memory))
    # Last, as the workflow makes them: what is older than what it is made of is made again.
    (folder / ACTIVITY).mkdir()
    sizes = _message_sizes(p, tables["collectives.parquet"])
    of_run = tables | {"message_sizes.parquet": sizes}
    index, files = of_run.pop(ACTIVITY_INDEX), []
    for name, table in of_run.items():
        pq.write_table(table, folder / ACTIVITY / name)
        files.append(described(folder / ACTIVITY / name))
    write_json(folder / ACTIVITY / ACTIVITY_INDEX, index | {"files": files})


def _step_time(p: JobParameters) -> float:
    """Seconds of a step: the work of one device's batch, and communication."""
    if p.workload == "llm":
        work = 0.05 * p.batch_size * {"dpo": 2.0, "qlora": 1.5, "qat": 1.3}.get(p.technique, 1.0)
    else:
        work = 0.02 * p.batch_size / 64 * (p.image_size / 100) ** 2 / 4
    return work * PRECISION[p.precision] + 0.002 * (p.devices - 1)


def _message_sizes(p: JobParameters, collectives: pa.Table) -> pa.Table:
    """Messages of each device in the profiled steps: buckets of gradients, or the sharded weights and their parts."""
    schema, rows = ACTIVITIES["message_sizes"].schema, []
    bucket = 25_000_000 if p.workload == "llm" else p.bucket_cap_mb * 1_000_000
    is_sharded = p.workload == "llm" or p.strategy == "fsdp"
    sizes = {"all_gather": (bucket, bucket // 10), "reduce_scatter": (bucket,)} if is_sharded else {}
    sizes |= {} if is_sharded else {"all_reduce": (bucket, bucket // 4, 4)}
    places = collectives.select(["report", "process", "rank", "device"]).to_pandas().drop_duplicates()
    for place in places.to_dict("records") if p.devices > 1 else []:
        for collective, each in sizes.items():
            for size in each:
                on_bus = bus_bandwidth(collective, size, p.devices, 1.0)
                seconds = LATENCY_S * p.devices + on_bus / BYTES_PER_S
                times = {"calls": p.profiled_steps, "total_s": p.profiled_steps * seconds, "median_s": seconds}
                rows.append(place | {"collective": collective, "size_bytes": size, "ranks": p.devices, **times})
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def _steps(p: JobParameters, step_s: float, memory: int, rng: np.random.Generator) -> Iterator[pd.DataFrame]:
    per_epoch = (p.steps if p.workload == "llm" else p.steps_per_epoch) or SAMPLES // (p.batch_size * p.devices)
    count = per_epoch * p.epochs if p.workload == "vision" else per_epoch
    number = np.arange(1, count + 1)
    window = np.where(number <= p.warmup_steps, "warmup", "measured").astype(object)
    window[p.warmup_steps : p.warmup_steps + p.profiled_steps] = "profiled"
    # The first step allocates the optimizer's state when it ends.
    peak = np.where(number == 1, 0.9, 1.0) * memory
    learned = 1 - np.exp(-number / 30) if p.workload == "llm" and p.technique == "dpo" else np.full(count, np.nan)
    for rank in range(p.devices):
        duration = step_s * rng.normal(1, 0.02, count)
        yield pd.DataFrame(
            {
                "rank": rank, "epoch": (number - 1) // per_epoch + 1, "step": number, "window": window,
                "start_s": np.cumsum(duration) - duration, "duration_s": duration,
                **{f"{phase}_s": duration * part for phase, part in PHASE_SHARES.items()},
                "samples": p.batch_size, "tokens": 512 * p.batch_size if p.workload == "llm" else None,
                "padded_tokens": 600 * p.batch_size if p.workload == "llm" else None, "loss": 2 / np.sqrt(number),
                "reward_chosen": 0.3 * learned + rng.normal(0, 0.05, count),
                "reward_rejected": -0.9 * learned + rng.normal(0, 0.05, count),
                "reward_accuracy": 0.5 + 0.3 * learned + rng.normal(0, 0.05, count),
                "peak_memory_bytes": peak.astype(int), "peak_reserved_bytes": (1.15 * peak).astype(int),
            },
            columns=STEP_COLUMNS,
        )  # fmt: skip


def _epochs(p: JobParameters, step_s: float) -> pd.DataFrame:
    if p.workload == "llm":
        return pd.DataFrame(columns=EPOCH_COLUMNS)
    epoch = np.arange(1, p.epochs + 1)
    error = 0.1 / epoch
    time = step_s * SAMPLES / (p.batch_size * p.devices)
    values = (epoch, 4 * error, 3 * error, 1 - error, time)
    return pd.DataFrame(dict(zip(EPOCH_COLUMNS, values, strict=True)))


def _record(name: str, p: JobParameters, memory: int) -> dict[str, Any]:
    tuning = p.workload == "llm"
    meter = {"energy_j": 1e4, "duration_s": 30.0, "reason": None}
    data = {"dataset": p.dataset, "source": "synthetic", "train_samples": SAMPLES, "files": []}
    flop = 6 * 8e9 * p.batch_size * p.sequence_length if tuning else 1.8e9 * p.batch_of_rank * (p.image_size / 224) ** 2
    operations = {"model": flop, "hardware": flop, "precision": p.precision, "problem": None}
    return {
        "run": name, "outcome": "completed", "reason": None, "parameters": p.model_dump(),
        "started": "2026-01-01T00:00:00.000+00:00", "ended": "2026-01-01T00:01:00.000+00:00", "wall_time_s": 60.0,
        "exit_code": 0, "profiler": {"used": "nsys", "why": "synthetic", "trace_missing": None}, "command": [],
        "host": {"name": "synthetic", "system": "Linux"},
        "hardware": {
            "processor": "synthetic processor", "logical_cpus": 64, "usable_cpus": 64, "memory_bytes": 512 << 30,
            "gpus": [GPU] * 4,
        },
        "versions": {"multicard": "synthetic", "torch": "2.11.0"}, "data": data,
        "model": {"model": p.model, "architecture": "llama3_8b", "files": []} if tuning else None,
        "steps_per_pass": SAMPLES // (p.batch_size * p.devices),
        "ranks": [
            {
                "rank": rank, "pid": 4000 + rank,
                "binding": {"cpus": "0-63", "numa_nodes": [rank % 2], "note": None},
                "energy": [meter], "device_memory_used_bytes": [int(1.15 * memory) + OUTSIDE_PYTORCH],
                "operations": operations,
            }
            for rank in range(p.devices)
        ],
    }  # fmt: skip

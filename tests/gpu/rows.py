"""What a run of the GPU check must show to pass: the expected outcome, and a record that agrees with its trace."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.config.read_run import read_run
from multicard.config.runs import Run
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, STEPS
from multicard.core.reasons import describe_reason
from multicard.programs.vision.strategies import STRATEGIES
from multicard.results.breakdown import StepPart, parts_of
from multicard.results.measure import measure_run, trace_to_record
from multicard.results.run_files import RunFiles
from multicard.runs.environment import gpu_names, is_synthetic
from multicard.runs.parameters import JobParameters
from multicard.runs.record import Binding, RankRecord, RunRecord
from multicard.trace.tables import STEPS as ALL_STEPS

# Scenarios around which the check does something: see check.py.
OUT_OF_MEMORY, EVENTS_TRACED = "out_of_memory", "events_traced"

MEMORY_TOLERANCE = 0.25  # of the estimate for language models, against the measured peak
# What a real GPU must show of steps that are alike, as quotients.
MFU = (0.05, 1.0)  # of the peak that the vendor states
POWER = (0.1, 1.1)  # mean power of a busy GPU to its limit
SETTLED = (0.5, 1.5)  # the first profiled step to the others' median
STEADY = (0.8, 1.25)  # the last tenth of the measured steps to the first tenth: medians
LATENCY_S = (0.0, 1e-3)  # of an all-reduce between two GPUs of a node
BANDWIDTH = (0.5e9, 1e12)  # bytes per second, likewise
ONE_NODE = ("the machine has one NUMA node", "the system shows no NUMA nodes")  # ends of the notes of ranks not bound
COLUMNS = (
    "scenario", "run", "result", "outcome", "wall_time_s", "iteration_time_s", "trace_to_record", "steps",
    "traced_steps", "kernels_per_step", "communication_per_step", "energy_per_sample_j",
    "peak_memory_bytes", "estimated_memory_bytes", "largest_part", "flop_per_step", "mfu", "mean_power_w",
    "first_profiled_step", "last_measured_steps", "overlapped_share", "latency_s", "bandwidth_bytes_per_s", "remarks",
)  # fmt: skip


def judge(run: Run, folder: Path, scenario: str = "") -> dict[str, Any]:
    """One row of the table, by `COLUMNS`; its result is `passed` or `FAILED`, and its remarks say why.

    `scenario`: as which it is judged; in `OUT_OF_MEMORY` the last rank is to run out of memory.
    """
    record = read_run(folder)
    row = {"run": run.id, "outcome": record.outcome, "wall_time_s": record.wall_time_s}
    if scenario == OUT_OF_MEMORY:
        faults = _memory_faults(record, run.parameters)
    elif not record.completed:
        faults = [describe_reason(record.reason) or "no reason is recorded"]
    else:
        shown, faults = _completed(run, folder, record, scenario)
        row |= shown
    return row | {"result": "FAILED" if faults else "passed", "remarks": "; ".join(faults)}


def _memory_faults(record: RunRecord, p: JobParameters) -> list[str]:
    reason = record.reason
    if record.outcome != "out_of_memory" or reason is None:
        return [f"expected out_of_memory; {describe_reason(reason) or 'nothing failed'}"]
    last = p.devices - 1
    return [] if reason.rank == last else [f"expected rank {last} to run out of memory: {describe_reason(reason)}"]


def _completed(run: Run, folder: Path, record: RunRecord, scenario: str) -> tuple[dict[str, Any], list[str]]:
    """What is shown of a completed run, and what is wrong with it."""
    p = run.parameters
    missing = record.profiler.trace_missing
    if missing or not (folder / ACTIVITY / ACTIVITY_INDEX).exists():
        return {}, [f"no trace: {missing or 'it was not read'}"]
    files = RunFiles(folder)
    steps = files.table(STEPS, ("rank", "window", "duration_s"))
    found, ratio = measure_run(files), trace_to_record(files, steps)
    recorded = steps[steps["window"] == "profiled"].groupby("rank").size()
    traced = files.traced_steps.groupby(["report", "process"]).size()
    kernels = _calls(files, "kernel_classes").groupby(["process", "device"])["calls"].sum()
    of_kinds = _calls(files, "collectives", "collective")
    communication = of_kinds.groupby(["process", "device"])["calls"].sum()
    per_step = 1 / max(1, traced.max() if len(traced) else 1)
    estimate = found.get("estimated_memory_bytes") or run.device_memory_bytes()
    row = {
        **{name: found[name] for name in ("iteration_time_s", "energy_per_sample_j", "peak_memory_bytes")},
        "trace_to_record": ratio,
        "steps": int(recorded.sum()),
        "traced_steps": int(traced.sum()),
        "kernels_per_step": kernels.mean() * per_step if len(kernels) else 0.0,
        "communication_per_step": communication.mean() * per_step if len(communication) else 0.0,
        "estimated_memory_bytes": estimate,
        "largest_part": largest_part(found),
        "flop_per_step": found["model_flop_per_step"],
        "mfu": found["mfu"],
        "overlapped_share": overlapped_share(files),
        **step_quotients(steps),
    }
    faults = [found["inconsistency"]] if found["inconsistency"] else []
    if unseen := sorted(set(range(p.ranks)) - set(files.traced_steps["rank"].dropna())):
        faults.append(f"ranks without a step that is in both the trace and the record: {unseen}")
    fewest = recorded.reindex(range(p.ranks), fill_value=0).min()
    if fewest < p.profiled_steps:
        faults.append(f"the record has {fewest} profiled steps of a rank, expected {p.profiled_steps}")
    if sorted(traced) != sorted(recorded):
        faults.append(f"steps of the processes: {sorted(traced)} in the trace, {sorted(recorded)} in the record")
    if len(kernels) != p.devices:
        faults.append(f"kernels on {len(kernels)} GPUs, expected {p.devices}")
    for kind in sorted(required_collectives(p)):
        gpus = len(of_kinds.loc[of_kinds["collective"] == kind, ["process", "device"]].drop_duplicates())
        if gpus != p.devices:
            faults.append(f"kernels of {kind} on {gpus} GPUs, expected {p.devices}")
    meters = [meter for rank in record.ranks for meter in rank.energy or ()]
    metered = sum((meter.energy_j or 0) > 0 for meter in meters)
    if metered != p.devices:
        reasons = ", ".join(sorted({meter.reason for meter in meters} - {None})) or "the counter did not rise"
        faults.append(f"energy of {metered} GPUs, expected {p.devices}: {reasons}")
    row["mean_power_w"], unknown = power_and_conditions(record.ranks)
    faults += unknown
    if p.binding == "numa":
        faults += binding_faults(record.ranks)
    if p.workload == "llm":
        faults += estimate_faults(estimate, row["peak_memory_bytes"])
    is_real = not is_synthetic(gpu_names(record.hardware))
    if scenario in OF_SCENARIO:
        faults += OF_SCENARIO[scenario](p, row, files, is_real)
    return row, faults


def largest_part(found: Mapping[str, Any]) -> str | None:
    """The part of a step that takes most, by its phases; None where no phase was recorded."""
    parts = parts_of(found)
    return max(parts, key=parts.get, default=None)


def step_quotients(steps: pd.DataFrame) -> dict[str, float]:
    """The first profiled step to the median of the others, and the last tenth of the measured steps to the first."""
    longest = steps.groupby(["window", "step"])["duration_s"].max()
    measured, profiled = longest["measured"], longest["profiled"]
    tenth = -(-len(measured) // 10)
    return {
        "first_profiled_step": profiled.iloc[0] / profiled.iloc[1:].median(),
        "last_measured_steps": measured.iloc[-tenth:].median() / measured.iloc[:tenth].median(),
    }


def overlapped_share(files: RunFiles) -> float | None:
    """Part of the time in communication in which computing goes on, too; None where nothing is communicated."""
    rows = files.activity("timeline", ["scope", "overlapped_s", "exposed_communication_s"]).to_pandas()
    sums = rows.loc[rows["scope"] == ALL_STEPS, ["overlapped_s", "exposed_communication_s"]].sum()
    return sums["overlapped_s"] / sums.sum() if sums.sum() else None


def power_and_conditions(ranks: Sequence[RankRecord]) -> tuple[float | None, list[str]]:
    """Mean watts of a GPU in the measured steps, and which ranks' GPUs the launcher told no clocks or throttling of."""
    meters = [meter for rank in ranks for meter in rank.energy or () if meter.energy_j]
    seconds = sum(meter.duration_s for meter in meters)
    faults = []
    for rank in ranks:
        for gpu in rank.gpu_conditions or (None,):
            state = gpu and (gpu.after or gpu.before)
            of_clocks = state and state.sm_clock_mhz
            of_throttling = gpu and gpu.clock_reasons is not None
            missing = [name for name, told in (("clocks", of_clocks), ("throttling", of_throttling)) if not told]
            faults += [f"rank {rank.rank}: nothing is recorded of its GPU's {' and '.join(missing)}"] * bool(missing)
    return sum(meter.energy_j for meter in meters) / seconds if seconds else None, faults


def _outside(what: str, value: float | None, limits: tuple[float, float]) -> list[str]:
    """A fault where a value is not known, or not within its limits."""
    if value is not None and limits[0] <= value <= limits[1]:
        return []
    return [f"{what} is {'not known' if value is None else f'{value:.3g}'}, expected {limits[0]:g} to {limits[1]:g}"]


def _edges(p: JobParameters) -> list[int]:
    return [int(edge) for edge in str(p.args["edges"]).split(",")]


def product_faults(p: JobParameters, row: Mapping[str, Any], files: RunFiles, is_real: bool) -> list[str]:
    """What is wrong with a known matrix product: one forwards and two backwards, each of 2 edge³ operations.

    Its MFU counts where a peak is known of the GPU; no time counts of a GPU that is not real.
    """
    flop = sum(6 * edge**3 for edge in _edges(p))
    counted = row["flop_per_step"]
    faults = [] if counted == flop else [f"{counted or 'no'} operations in a step, expected {flop}"]
    conditions = [gpu for rank in files.record.ranks for gpu in rank.gpu_conditions or () if gpu]
    limits = [(gpu.after or gpu.before).power_limit_w for gpu in conditions]
    if limits and all(limits):
        watts = row["mean_power_w"]
        faults += _outside("mean power to its limit", watts and watts / max(limits), POWER)
    if is_real:
        faults += [] if row["mfu"] is None else _outside("MFU", row["mfu"], MFU)
        faults += _outside("the first profiled step to the others", row["first_profiled_step"], SETTLED)
    return faults


def steady_faults(_p: JobParameters, row: Mapping[str, Any], _files: RunFiles, is_real: bool) -> list[str]:
    """What is wrong with the last of many short steps, whose CUDA events were not made in advance."""
    return _outside("the last measured steps to the first", row["last_measured_steps"], STEADY) if is_real else []


def loading_faults(p: JobParameters, row: Mapping[str, Any], _files: RunFiles, is_real: bool) -> list[str]:
    """What is wrong with the largest part of a step, by how long products.py loads.

    Where it loads nothing, a CPU that others use may stall more than a GPU that is not real computes.
    """
    expected, found = StepPart.DATA if p.args["load_ms"] else StepPart.COMPUTE, row["largest_part"]
    if found == expected or (not is_real and expected == StepPart.COMPUTE and found not in (StepPart.DATA, None)):
        return []
    return [f"the largest part of a step is {found}, expected {expected}"]


def pinned_faults(p: JobParameters, _row: Mapping[str, Any], files: RunFiles, _is_real: bool) -> list[str]:
    """What is wrong with the kind of host memory that most bytes are copied from."""
    copies = files.activity("memory_operations", ["operation", "host_memory", "bytes"]).to_pandas()
    copies = copies[copies["operation"] == "host_to_device"]
    found = copies.groupby("host_memory")["bytes"].sum()
    expected, most = "pinned" if p.pin_memory else "pageable", found.idxmax() if len(found) else "no known"
    return [] if most == expected else [f"most bytes are copied from {most} memory, expected {expected}"]


def all_reduce_faults(p: JobParameters, row: dict[str, Any], files: RunFiles, is_real: bool) -> list[str]:
    """What is wrong with all-reduces of 2 edge² bytes; notes in the row the latency, and the bytes per second beyond.

    Of two GPUs the bus bandwidth is the bytes of a message over the time; of a size the fastest call counts, which
    waited least for the other rank.
    """
    names = ["collective", "size_bytes", "min_s"]
    sizes = files.activity("message_sizes", names).to_pandas() if files.has_activity("message_sizes") else None
    sizes = pd.DataFrame(columns=names) if sizes is None else sizes[sizes["collective"] == "all_reduce"]
    fastest, expected = sizes.groupby("size_bytes")["min_s"].min(), sorted(2 * edge**2 for edge in _edges(p))
    if list(fastest.index) != expected:
        return [f"all-reduces of {list(fastest.index) or 'no known'} bytes, expected {expected}"]
    small, large = expected[0], expected[-1]
    more_s = fastest[large] - fastest[small]
    row["bandwidth_bytes_per_s"] = (large - small) / more_s if more_s > 0 else None
    row["latency_s"] = fastest[small] - small * more_s / (large - small)
    return [
        fault
        for name, limits in (("latency_s", LATENCY_S), ("bandwidth_bytes_per_s", BANDWIDTH))
        for fault in (_outside(name, row[name], limits) if is_real else [])
    ]


def overlap_faults(_p: JobParameters, row: Mapping[str, Any], _files: RunFiles, is_real: bool) -> list[str]:
    """What is wrong with communication in small buckets while gradients are computed."""
    return [] if row["overlapped_share"] or not is_real else ["no communication is overlapped by computing"]


# What a scenario is for, of its completed runs. `EVENTS_TRACED` is only to be compared with `overlap`.
OF_SCENARIO: dict[str, Callable[[JobParameters, dict[str, Any], RunFiles, bool], list[str]]] = {
    "matrix_product": product_faults,
    "loading": loading_faults,
    "pinned": pinned_faults,
    "script": steady_faults,
    "all_reduce": all_reduce_faults,
    "overlap": overlap_faults,
}


def estimate_faults(estimate: float, peak: float | None) -> list[str]:
    """What is wrong with an estimate of memory, in bytes, where that peak was measured."""
    if not peak:
        return ["no peak of memory is recorded"]
    return (
        [f"the memory estimate is {estimate / peak:.2f} of the peak"]
        if abs(estimate / peak - 1) > MEMORY_TOLERANCE
        else []
    )


def binding_faults(ranks: Sequence[RankRecord]) -> list[str]:
    """Ranks that are not bound next to their GPUs; on a machine with one NUMA node there is nothing to bind them to."""
    faults = []
    for rank in ranks:
        binding = rank.binding or Binding()
        note, cpus = binding.note or "nothing is recorded of its binding", binding.cpus
        stated = re.match(r"bound to CPUs (\S+) of NUMA node", note)
        if stated and stated[1] != cpus:
            faults.append(f"rank {rank.rank}: {note}; but it may use CPUs {cpus}")
        elif not stated and not note.endswith(ONE_NODE):
            faults.append(f"rank {rank.rank}: {note}")
    return faults


def _calls(files: RunFiles, table: str, *others: str) -> pd.DataFrame:
    """An activity table, which is of the profiled steps."""
    return files.activity(table, ["process", "device", *others, "calls"]).to_pandas()


def required_collectives(p: JobParameters) -> set[str]:
    """Collectives whose kernels each GPU must show: of FSDP, of DDP's buckets, or of nn.DataParallel."""
    if p.devices == 1:
        return set()
    if p.workload == "script":
        return {"all_reduce"}
    if p.workload == "llm" or not STRATEGIES[p.strategy].has_checkpoints:
        return {"all_gather", "reduce_scatter"}
    return {"all_reduce"} if STRATEGIES[p.strategy].has_buckets else {"broadcast"}

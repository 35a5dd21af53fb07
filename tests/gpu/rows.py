"""What a run of the GPU check must show to pass: the expected outcome, and a record that agrees with its trace."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.runs.measures import measure_run, trace_to_record
from multicard.analysis.runs.run_files import RunFiles, read_record, read_table
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, STEPS
from multicard.core.reasons import describe_reason
from multicard.experiment.parameters import JobParameters
from multicard.experiment.runs import Run
from multicard.workloads.vision.strategy import STRATEGIES

MEMORY_TOLERANCE = 0.25  # of the estimate for language models, against the measured peak
ONE_NODE = ("the machine has one NUMA node", "the system shows no NUMA nodes")  # ends of the notes of ranks not bound
COLUMNS = (
    "scenario", "run", "result", "outcome", "wall_time_s", "iteration_time_s", "trace_to_record", "steps",
    "traced_steps", "kernels_per_step", "communication_per_step", "energy_per_sample_j",
    "peak_memory_bytes", "estimated_memory_bytes", "remarks",
)  # fmt: skip


def judge(run: Run, folder: Path, runs_out_of_memory: bool = False) -> dict[str, Any]:
    """One row of the table, by `COLUMNS`; its result is `passed` or `FAILED`, and its remarks say why.

    `runs_out_of_memory`: whether the last rank is to run out of memory.
    """
    record = read_record(folder)
    row = {"run": run.id, "outcome": record["outcome"], "wall_time_s": record["wall_time_s"]}
    if runs_out_of_memory:
        faults = _memory_faults(record, run.parameters)
    elif record["outcome"] != "completed":
        faults = [describe_reason(record["reason"]) or "no reason is recorded"]
    else:
        shown, faults = _completed(run, folder, record)
        row |= shown
    return row | {"result": "FAILED" if faults else "passed", "remarks": "; ".join(faults)}


def _memory_faults(record: Mapping[str, Any], p: JobParameters) -> list[str]:
    reason = record["reason"] or {}
    if record["outcome"] != "out_of_memory":
        return [f"expected out_of_memory; {describe_reason(record['reason']) or 'nothing failed'}"]
    last = p.devices - 1
    return (
        [] if reason.get("rank") == last else [f"expected rank {last} to run out of memory: {describe_reason(reason)}"]
    )


def _completed(run: Run, folder: Path, record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is shown of a completed run, and what is wrong with it."""
    p = run.parameters
    missing = record["profiler"]["trace_missing"]
    if missing or not (folder / ACTIVITY / ACTIVITY_INDEX).exists():
        return {}, [f"no trace: {missing or 'it was not read'}"]
    files, steps = RunFiles(folder), read_table(folder / STEPS, ("rank", "window", "duration_s"))
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
    meters = [meter for rank in record["ranks"] for meter in rank.get("energy") or []]
    metered = sum((meter["energy_j"] or 0) > 0 for meter in meters)
    if metered != p.devices:
        reasons = ", ".join(sorted({meter["reason"] for meter in meters} - {None})) or "the counter did not rise"
        faults.append(f"energy of {metered} GPUs, expected {p.devices}: {reasons}")
    if p.binding == "numa":
        faults += binding_faults(record["ranks"])
    if p.workload == "llm":
        faults += estimate_faults(estimate, row["peak_memory_bytes"])
    return row, faults


def estimate_faults(estimate: float, peak: float | None) -> list[str]:
    """What is wrong with an estimate of memory, in bytes, where that peak was measured."""
    if not peak:
        return ["no peak of memory is recorded"]
    return (
        [f"the memory estimate is {estimate / peak:.2f} of the peak"]
        if abs(estimate / peak - 1) > MEMORY_TOLERANCE
        else []
    )


def binding_faults(ranks: list[dict[str, Any]]) -> list[str]:
    """Ranks that are not bound next to their GPUs; on a machine with one NUMA node there is nothing to bind them to."""
    faults = []
    for rank in ranks:
        binding = rank.get("binding") or {}
        note, cpus = binding.get("note") or "nothing is recorded of its binding", binding.get("cpus")
        stated = re.match(r"bound to CPUs (\S+) of NUMA node", note)
        if stated and stated[1] != cpus:
            faults.append(f"rank {rank['rank']}: {note}; but it may use CPUs {cpus}")
        elif not stated and not note.endswith(ONE_NODE):
            faults.append(f"rank {rank['rank']}: {note}")
    return faults


def _calls(files: RunFiles, table: str, *others: str) -> pd.DataFrame:
    """An activity table, which is of the profiled steps."""
    return files.activity(table, ["process", "device", *others, "calls"]).to_pandas()


def required_collectives(p: JobParameters) -> set[str]:
    """Collectives whose kernels each GPU must show: of FSDP, of DDP's buckets, or of nn.DataParallel."""
    if p.devices == 1:
        return set()
    if p.workload == "llm" or not STRATEGIES[p.strategy].has_checkpoints:
        return {"all_gather", "reduce_scatter"}
    return {"all_reduce"} if STRATEGIES[p.strategy].has_buckets else {"broadcast"}

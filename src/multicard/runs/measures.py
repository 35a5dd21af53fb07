"""The measures that a run of any program may have: columns of measures.csv, each with its unit and its definition."""

from dataclasses import dataclass, field, fields
from typing import Any

# Units, as the metadata of a field states them. "" is text, a number of things, or True or False.
SECONDS, BYTES, JOULES, SHARE, PER_S = "s", "bytes", "J", "share, 0 to 1", "1/s"
OPERATIONS, OPERATIONS_PER_S, CHANGE = "operations", "operations/s", "relative change"


def _measure(definition: str, unit: str = "") -> Any:
    """Return the field of a measure. Its default is None, which is the value of a measure that was not recorded."""
    return field(default=None, metadata={"definition": definition, "unit": unit})


def _part(name: str) -> Any:
    """Return the field of the share of a step's time that one of its parts takes."""
    return _measure(f"share of a step's time: {name}", SHARE)


@dataclass(frozen=True)
class Measures:
    """The measures of a run that programs have in common, in the order of the columns of measures.csv.

    `analysis.runs.measures` computes them. None is a measure that was not recorded. The measured steps are those of the
    measured window; the profiled ones are those that a profiler captured.
    """

    elapsed_s: float | None = _measure(
        "time on the slowest rank from the start of the first to the end of the last measured step of each epoch, "
        "summed over epochs",
        SECONDS,
    )
    iteration_time_s: float | None = _measure("elapsed_s / measured_steps, with the time between steps", SECONDS)
    throughput_samples_per_s: float | None = _measure(
        "distinct training samples of the measured window / elapsed_s; samples that several ranks see count once", PER_S
    )
    processed_samples_per_s: float | None = _measure(
        "samples that all ranks process in the measured window, duplicates included, / elapsed_s", PER_S
    )
    estimated_epoch_time_s: float | None = _measure(
        "iteration_time_s × steps of one full pass over the training data", SECONDS
    )
    median_iteration_time_s: float | None = _measure(
        "median over the measured steps of the step time of the slowest rank", SECONDS
    )
    data_s: float | None = _measure("mean time per measured step and rank of waiting for the loader", SECONDS)
    transfer_s: float | None = _measure("mean time per measured step and rank of copying the batch", SECONDS)
    forward_s: float | None = _measure("mean time per measured step and rank of the forward pass", SECONDS)
    backward_s: float | None = _measure("mean time per measured step and rank of the backward pass", SECONDS)
    optimizer_s: float | None = _measure("mean time per measured step and rank of the optimizer", SECONDS)
    other_s: float | None = _measure("mean time per measured step and rank outside all phases and evaluations", SECONDS)
    mean_iteration_time_s: float | None = _measure(
        "mean step time over measured steps and ranks: the sum of the phases, evaluations and other_s", SECONDS
    )
    data_share: float | None = _measure(
        "share of the time from step to step in which the rank that waited longest in each step waited for the loader",
        SHARE,
    )
    energy_per_sample_j: float | None = _measure(
        "energy of the GPUs in the measured steps, per processed sample; None unless every GPU was metered", JOULES
    )
    peak_reserved_bytes: int | None = _measure(
        "most memory that PyTorch's allocator had reserved on any rank in the measured steps", BYTES
    )
    device_memory_used_bytes: int | None = _measure(
        "highest memory use of any GPU by everything running on it, in its measured steps before any evaluation", BYTES
    )
    peak_memory_bytes: int | None = _measure(
        "most memory that was allocated for tensors on any rank in the measured steps", BYTES
    )
    measured_steps: int | None = _measure(
        "measured steps per rank; of a run that did not complete, those that all ranks made"
    )
    intraop_threads: int | None = _measure("most threads that PyTorch's operators used in a rank")
    usable_cpus: int | None = _measure("CPUs that the job may use on its first node")
    profiled_iteration_time_s: float | None = _measure("as iteration_time_s, in the profiled window", SECONDS)
    profiled_data_s: float | None = _measure("as data_s, in the profiled window", SECONDS)
    profiled_data_share: float | None = _measure("as data_share, in the profiled window", SHARE)
    trace_host_extents: bool | None = _measure(
        "True if the steps of a GPU are ranges on the host, because too few launches were recorded"
    )
    trace_iteration_time_s: float | None = _measure("as profiled_iteration_time_s, from the trace", SECONDS)
    profiler_overhead: float | None = _measure("profiled_iteration_time_s / iteration_time_s − 1", CHANGE)
    loader_alone_s: float | None = _measure(
        "of a run without loading: time in which the slowest rank's loader alone gives the batches of a step", SECONDS
    )
    loader_workers: int | None = _measure("of a run without loading: workers of that rank's first loader")
    drift: float | None = _measure(
        "mean time per step of the second half of the measured steps / that of the first half, − 1, from start to "
        "start, on the slowest rank",
        CHANGE,
    )
    stationary: bool | None = _measure(
        "False if the drift is more than 5% and the change is significant at 1%; None below 10 steps"
    )
    model_flop_per_step: float | None = _measure(
        "operations that the model needs in a measured step on a device, mean", OPERATIONS
    )
    hardware_flop_per_step: float | None = _measure(
        "the same with those that activation checkpointing computes again", OPERATIONS
    )
    achieved_flop_per_s: float | None = _measure("model_flop_per_step / iteration_time_s", OPERATIONS_PER_S)
    peak_flop_per_s: float | None = _measure("highest rate of matrix products of the device", OPERATIONS_PER_S)
    mfu: float | None = _measure("model FLOP utilization: achieved_flop_per_s / peak_flop_per_s", SHARE)
    hfu: float | None = _measure(
        "hardware FLOP utilization: hardware_flop_per_step / iteration_time_s / peak_flop_per_s", SHARE
    )
    mfu_of: str | None = _measure("source of the peak: `measured`, `measured, disturbed` or `vendor`")

    # The parts of a step, which add up to 1: see `analysis.runs.step_parts.StepPart`. None for a part that is not
    # known.
    compute_share: float | None = _part("computing")
    compute_or_communication_share: float | None = _part("computing or communicating, which no trace separates")
    cuda_graphs_share: float | None = _part("CUDA graphs")
    exposed_communication_share: float | None = _part("communication while no kernel computes")
    waiting_for_other_ranks_share: float | None = _part("waiting inside a collective for other ranks")
    memory_operations_share: float | None = _part("copies, fills and migrations while nothing else runs")
    launch_overhead_share: float | None = _part("idle while the host launches")
    memory_allocation_share: float | None = _part("idle while the host allocates memory")
    loading_code_share: float | None = _part("idle while the host loads code")
    synchronization_share: float | None = _part("idle while the host synchronizes")
    host_without_gpu_calls_share: float | None = _part("idle while the host makes no GPU call")
    data_loading_share: float | None = _part("waiting for the loader")
    idle_within_graphs_share: float | None = _part("idle within CUDA graphs")
    queued_on_the_gpu_share: float | None = _part("idle although work is queued on the GPU")
    evaluation_share: float | None = _part("evaluation")
    stalls_share: float | None = _part("stalls: time of stalled steps beyond that of usual ones")
    other_share: float | None = _part("the rest")
    stalled_steps: str | None = _measure("how many measured steps stall, and the numbers of the first, in words")
    bound: str | None = _measure("name of the largest part of the step")


# The names of the measures, in the order of the columns of measures.csv.
COMMON = tuple(measure.name for measure in fields(Measures))

"""The columns of measures.csv that a run of any program has, each with its unit and its definition.

docs/measures.md is made from them and from the measures that single programs have (`multicard.answers`).
"""

from dataclasses import dataclass, field, fields
from typing import Any

# Units, as the metadata of a field states them. "" is text, a number of things, or True or False. Tables and the report
# take the unit from the ending of the column's name (`core.units.UNITS`); a test compares the two.
SECONDS, BYTES, JOULES, SHARE, PER_S = "s", "bytes", "J", "share, 0 to 1", "1/s"
OPERATIONS, OPERATIONS_PER_S, BYTES_PER_S, CHANGE = "operations", "operations/s", "bytes/s", "relative change"


@dataclass(frozen=True)
class Definition:
    """The definition of a column of measures.csv, as the page docs/measures.md has it."""

    # Markdown that the page shows in a cell of a table. It calls a value that is None "empty", as it is in the file.
    text: str
    unit: str = ""
    target: float | None = None  # value that a training is to reach, in the unit; None if there is no such goal


# The record counts as inconsistent if its steps are longer or shorter in the trace by more than this share.
TRACE_TOLERANCE = 0.05

# Columns of measures.csv that precede parameters and measures.
ABOUT = {
    "run": Definition("Name of the run, and of [its folder](files.md)."),
    "outcome": Definition("How the run ended; see [outcomes](files.md#outcomes)."),
    "reason": Definition("Why it did not complete, in words; empty if it did."),
    "profiler_used": Definition("Name of the profiler that recorded the run, or `none`."),
    "disturbance": Definition(
        "What disturbed the run, in words, of several nodes or GPUs [the worst](measuring.md#disturbances); empty if "
        "nothing did or nothing is known."
    ),
    "inconsistency": Definition(
        "How the run's record disagrees with its trace, in words; empty if on every rank a profiled step lasts as long "
        f"in the trace as in the record, within {TRACE_TOLERANCE:.0%}, or if no step is in both."
    ),
    "trace_notice": Definition(
        "What the trace lacks or what was corrected in it, in words; empty if nothing, or if no trace was read."
    ),
}


def _measure(text: str, unit: str = "") -> Any:
    """Return the field of a measure. Its default is None, which is the value of a measure that was not recorded."""
    return field(default=None, metadata={"definition": Definition(text, unit)})


def _part(name: str) -> Any:
    """Return the field of the share of a step's time that one of its parts takes."""
    return _measure(f"Share of a step's time: {name}.", SHARE)


@dataclass(frozen=True)
class Measures:
    """The measures of a run that programs have in common, in the order of the columns of measures.csv.

    `results.measure` computes them. None is a measure that was not recorded. The measured steps are those of the
    measured window; the profiled ones are those that a profiler captured.
    """

    elapsed_s: float | None = _measure(
        "Time of the measured window: on the slowest rank, from the start of the first to the end of the last measured "
        "step of each epoch, summed over epochs.",
        SECONDS,
    )
    iteration_time_s: float | None = _measure(
        "`elapsed_s` / `measured_steps`, so it includes the time between steps. Of a run that did not complete: mean "
        "time of one of its `measured_steps`.",
        SECONDS,
    )
    throughput_samples_per_s: float | None = _measure(
        "Distinct training samples of the measured window / `elapsed_s`: the speed of one pass over the data. Ranks of "
        "plain `ddp` all see the same samples, so these count once. With packed sequences, the original samples are "
        "counted.",
        PER_S,
    )
    processed_samples_per_s: float | None = _measure(
        "Samples that all ranks together process in the measured window, duplicates included, / `elapsed_s`.", PER_S
    )
    estimated_epoch_time_s: float | None = _measure(
        "`iteration_time_s` × steps of one full pass over the training data; empty if their number is unknown.", SECONDS
    )
    median_iteration_time_s: float | None = _measure(
        "Median over the measured steps of the step time of the slowest rank, without the time between steps: a "
        "typical step, which rare long ones do not change.",
        SECONDS,
    )
    data_s: float | None = _measure(
        "Mean time per measured step and rank of waiting for the loader. Figures and answers show that of the rank for "
        "which the others wait (`data_loading_share`).",
        SECONDS,
    )
    transfer_s: float | None = _measure("Mean time per measured step and rank of copying the batch.", SECONDS)
    forward_s: float | None = _measure("Mean time per measured step and rank of the forward pass.", SECONDS)
    backward_s: float | None = _measure("Mean time per measured step and rank of the backward pass.", SECONDS)
    optimizer_s: float | None = _measure("Mean time per measured step and rank of the optimizer.", SECONDS)
    evaluation_s: float | None = _measure(
        "Mean time per measured step and rank in [evaluations inside a pass](measuring.md#steps-of-a-script); empty if "
        "none was seen.",
        SECONDS,
    )
    other_s: float | None = _measure(
        "Mean time per measured step and rank outside all phases and evaluations.", SECONDS
    )
    mean_iteration_time_s: float | None = _measure(
        "Mean step time over measured steps and ranks: the sum of the phases, of evaluations inside a pass and of "
        "`other_s`.",
        SECONDS,
    )
    data_share: float | None = _measure(
        "Share of the time from step to step that was spent waiting for the loader, in each step by the rank that "
        "waited for data and evaluated longest.",
        SHARE,
    )
    energy_per_sample_j: float | None = _measure(
        "[Energy](measuring.md#energy) of the GPUs in the measured steps, from NVML's counter, per processed sample; "
        "empty unless every GPU was metered.",
        JOULES,
    )
    peak_reserved_bytes: int | None = _measure(
        "Most memory that PyTorch's allocator had reserved on any rank in the measured steps; empty on CPUs.", BYTES
    )
    device_memory_used_bytes: int | None = _measure(
        "Highest memory use of any GPU by everything running on it, in its measured steps before any evaluation, from "
        "NVML.",
        BYTES,
    )
    peak_memory_bytes: int | None = _measure(
        "Highest peak memory of any rank in the measured steps, as [steps.csv](files.md#steps) states it: on GPUs "
        "memory that was allocated for tensors, on CPUs resident memory of the process.",
        BYTES,
    )
    measured_steps: int | None = _measure(
        "Steps of the measured window, per rank. Of a run that did not complete: those that all ranks made; only this "
        "and `iteration_time_s` are then known."
    )
    intraop_threads: int | None = _measure(
        "Most threads that PyTorch's operators used in a rank, whatever `threads` asked for."
    )
    usable_cpus: int | None = _measure("CPUs that the job may use on its first node.")
    profiled_iteration_time_s: float | None = _measure(
        "As `iteration_time_s`, in the profiled window, from the run's record.", SECONDS
    )
    profiled_data_s: float | None = _measure("As `data_s`, in the profiled window, from the run's record.", SECONDS)
    profiled_data_share: float | None = _measure(
        "As `data_share`, in the profiled window, from the run's record.", SHARE
    )
    trace_host_extents: bool | None = _measure(
        "True if the steps of a GPU are `step` ranges of the host, because "
        "[too few launches were recorded](step-time.md#from-a-trace); empty if the trace shows no steps of a GPU."
    )
    trace_iteration_time_s: float | None = _measure(
        "As `profiled_iteration_time_s`, from the trace: its steps are those on the GPU, or the `step` ranges of the "
        "host on CPUs and where [too few launches were recorded](step-time.md#from-a-trace).",
        SECONDS,
    )
    profiler_overhead: float | None = _measure(
        "`profiled_iteration_time_s` / `iteration_time_s` − 1: the slowdown caused by profiling.", CHANGE
    )
    loader_alone_s: float | None = _measure(
        "Of a run without loading (`ablate: loader`): time in which the slowest rank's loader alone gives the batches "
        "of a step; empty if a pass ended before that was known.",
        SECONDS,
    )
    loader_workers: int | None = _measure(
        "Of a run without loading: workers of that rank's first loader; empty like `loader_alone_s`."
    )
    drift: float | None = _measure(
        "Mean time per step of the second half of the measured steps / that of the first half − 1, from start to "
        "start, on the slowest rank.",
        CHANGE,
    )
    stationary: bool | None = _measure(
        "False if the drift is more than 5%, up or down, and the change is significant: the p-value of a change within "
        "the window, beyond what the correlation of consecutive steps explains, is below 0.01. A "
        "[slow fluctuation](measuring.md#steady-state) may cause this as well. Empty below 10 steps."
    )
    model_flop_per_step: float | None = _measure(
        "Mean floating-point operations that the model needs in a measured step on a device "
        "([how they are counted](choosing.md#how-far-from-the-limit)), without those that activation checkpointing "
        "repeats.",
        OPERATIONS,
    )
    hardware_flop_per_step: float | None = _measure(
        "As `model_flop_per_step`, with those that activation checkpointing repeats.", OPERATIONS
    )
    achieved_flop_per_s: float | None = _measure("`model_flop_per_step` / `iteration_time_s`.", OPERATIONS_PER_S)
    peak_flop_per_s: float | None = _measure(
        "[The peak](choosing.md#how-far-from-the-limit): the highest rate of matrix products of the device. This, "
        "`mfu`, `hfu` and `mfu_of` are empty if no peak is known, and for all repeats of a configuration if one of "
        "them was faster than the peak.",
        OPERATIONS_PER_S,
    )
    mfu: float | None = _measure("Model FLOP utilization: `achieved_flop_per_s` / `peak_flop_per_s`.", SHARE)
    hfu: float | None = _measure(
        "Hardware FLOP utilization: `hardware_flop_per_step` / `iteration_time_s` / `peak_flop_per_s`.", SHARE
    )
    mfu_of: str | None = _measure(
        "Source of the peak: `measured` by `multicard doctor --measure` on such a device, `measured, disturbed` if "
        "something else ran then, so that the peak may be too low and the shares too high, or `vendor`."
    )
    peak_bus_bandwidth_bytes_per_s: float | None = _measure(
        "Highest bus bandwidth of an all-reduce between as many devices, measured by `multicard doctor --measure` on "
        "such a machine; empty if it was not measured, and on several nodes.",
        BYTES_PER_S,
    )

    # The parts of a step, which add up to 1: see `results.breakdown.StepPart`. None for a part that is not
    # known.
    compute_share: float | None = _part("computing")
    compute_or_communication_share: float | None = _part(
        "computing or communicating, on several devices without a trace that separates the two"
    )
    cuda_graphs_share: float | None = _part("CUDA graphs")
    exposed_communication_share: float | None = _part("communication while no kernel computes")
    waiting_for_other_ranks_share: float | None = _part("waiting inside a collective for other ranks")
    memory_operations_share: float | None = _part(
        "copies, fills and migrations while no kernel computes or communicates"
    )
    launch_overhead_share: float | None = _part(
        "idle while the host launches work, is in another call or is between two calls"
    )
    memory_allocation_share: float | None = _part("idle while the host allocates, frees or registers memory")
    loading_code_share: float | None = _part("idle while the host loads code")
    synchronization_share: float | None = _part("idle while the host synchronizes")
    host_without_gpu_calls_share: float | None = _part(
        "idle while the host makes no GPU call for a millisecond or more"
    )
    data_loading_share: float | None = _part("waiting for the loader")
    idle_within_graphs_share: float | None = _part("idle within CUDA graphs")
    queued_on_the_gpu_share: float | None = _part("idle although work is queued on the GPU")
    evaluation_share: float | None = _part("evaluation")
    stalls_share: float | None = _part("time of stalled steps beyond that of usual ones")
    other_share: float | None = _part("the rest, in no phase or idle for an unknown reason")
    stalled_steps: str | None = _measure(
        "How many measured steps stall, and the numbers of the first, in words; empty if none does."
    )
    bound: str | None = _measure(
        "Name of the largest part of the step: `compute`, `data loading`, `stalls`, …; empty if no part is known."
    )


# The names of the measures, in the order of the columns of measures.csv.
COMMON = tuple(measure.name for measure in fields(Measures))

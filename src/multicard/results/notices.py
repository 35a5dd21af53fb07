"""Notices about a run that a reader must know before believing its numbers. They are made from its measures."""

from collections.abc import Callable, Mapping
from typing import Any

from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.programs import PROGRAMS
from multicard.results.tables import KnownValues, known_values

# Subjects of notices. `NOTICES` has further ones.
DISTURBED = "disturbed"
INCONSISTENT = "inconsistent record"
TRACE = "trace incomplete or corrected"
NOT_STATIONARY = "not stationary"
UNCOUNTED = "samples not counted"
BY_BACKWARD = "steps counted by backward passes"
WINDOW_DIFFERS = "profiled window unlike the measured one"
HOST_EXTENTS = "steps of a GPU timed on the host"
# Subjects of notices that concern only the numbers of the profiled window.
PROFILED = (WINDOW_DIFFERS, HOST_EXTENTS)

# There is a notice about the time between passes if it is at least this share of the measured time, itself included.
LEAST_BETWEEN_PASSES = 0.02
# The profiled window is unlike the measured one if its steps are shorter by more than this share, or if the data shares
# of the two differ by more than this.
UNLIKE = 0.1


def notices_by_subject(measures: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the notices about a run by their subject, in the order of `NOTICES`."""
    values = known_values(measures)
    texts = {subject: notice(values) for subject, notice in NOTICES.items()}
    return {subject: text for subject, text in texts.items() if text}


def notices(measures: Mapping[str, Any]) -> list[str]:
    """Return the notices about a run as lines of the form `subject: text`."""
    return [f"{subject}: {text}" for subject, text in notices_by_subject(measures).items()]


# The functions below return the text of a notice without its subject, or None if there is no such notice.


def _ablated(values: KnownValues) -> str | None:
    """Return the notice that a run skipped a part of its step."""
    part = values.get("ablate", "none")
    if part == "none":
        return None
    return f"it trained nothing, to measure what the {part.replace('+', ' and the ')} costs"


def _adopted(values: KnownValues) -> str | None:
    """Return the notice that a run is made of traces that multicard did not record, with how its steps were found."""
    if "traced_devices" not in values:
        return None
    steps = values.get("steps_from")
    return f"steps from {steps}, timed while a profiler recorded" if steps else "no steps were found"


def _idle_in_traces(values: KnownValues) -> str | None:
    """Return the notice that the traces do not show as many GPUs at work as the run has.

    The other GPUs were idle, or were not traced.
    """
    traced, devices = values.get("traced_devices"), values.get("devices")
    if traced in (None, devices):
        return None
    return f"{traced:.0f} of {devices:.0f}, whose times may not be those of the slowest"


def _drift(values: KnownValues) -> str | None:
    """Return the notice that the step time was not stationary over the measured steps."""
    if values.get("stationary", True):
        return None
    change = percent(values["drift"], signed=True)
    return f"step time {change} from the first to the second half of the measured steps: drift, or a slow fluctuation"


def _same_samples(values: KnownValues) -> str | None:
    """Return the notice that ranks of a script process the same samples."""
    if values.get("distinct_share", 1) >= 1:
        return None
    return "they are counted once; a DistributedSampler gives each rank its own, unless ranks share a model"


def _may_share(values: KnownValues) -> str | None:
    """Return the notice that it is not known whether ranks of a script process the same samples."""
    is_counted = "throughput_samples_per_s" in values or "tokens_per_s" in values
    program = PROGRAMS.get(values.get("workload", ""))
    has_share = program is not None and "distinct_share" in program.measures.definitions
    if not _was_measured(values) or not is_counted or not has_share or "distinct_share" in values:
        return None
    return "their loaders do not show it, so samples are counted as distinct"


def _uncounted(values: KnownValues) -> str | None:
    """Return the notice that a run has no throughput in samples because they were not counted, and the remedy."""
    program = PROGRAMS.get(values.get("workload", ""))
    may_state_samples = program is not None and "samples_per_step" in program.parameters.model_fields
    if not _was_measured(values) or not may_state_samples or "throughput_samples_per_s" in values:
        return None
    remedy = "state samples_per_step or samples_per_device, or mark them: multicard.marks.step(samples=…)"
    return f"throughput is in steps, and there is no speed-up: {remedy}"


def _by_backward(values: KnownValues) -> str | None:
    """Return the notice that each backward pass of a script counted as a step, though a step may have several."""
    if values.get("steps_by") != "backward passes":
        return None
    remedy = "if an update follows several backward passes, mark it with multicard.marks.step()"
    return f"no optimizer of PyTorch's updated, so each backward pass counts as a step; {remedy}"


def _short_pass(values: KnownValues) -> str | None:
    """Return the notice that the measured steps span several passes over the data, and the time between passes.

    None if the time between passes is known and short; see `LEAST_BETWEEN_PASSES`.
    """
    passes = values.get("measured_passes", 1)
    between_s = values.get("between_passes_s")
    if passes < 2:
        return None
    text = f"the measured steps span {passes:.0f} passes"
    if "steps_per_pass" in values:
        text += f" of {counted(round(values['steps_per_pass']), 'step')}"
    if between_s is None:
        return f"{text}; the time between passes is not measured"
    left_out_s = between_s * (passes - 1)
    share = left_out_s / (values["elapsed_s"] + left_out_s)
    if share < LEAST_BETWEEN_PASSES:
        return None
    return f"{text}; the {with_unit(between_s, SECONDS)} between two passes are in no step"


def _window_differs(values: KnownValues) -> str | None:
    """Return the notice that the profiled window is unlike the measured one.

    It is unlike if its steps are shorter, because no profiler makes steps shorter. It is also unlike if its steps wait
    for data for another share of their time. Then either batches piled up before the window, or the profiler made the
    steps longer while the loader worked at its usual speed.
    """
    differences = []
    overhead = values.get("profiler_overhead", 0.0)
    if overhead < -UNLIKE:
        differences.append(f"steps {percent(-overhead)} shorter")
    profiled, measured = values.get("profiled_data_share"), values.get("data_share")
    if profiled is not None and measured is not None and abs(profiled - measured) > UNLIKE:
        differences.append(f"data share {percent(profiled)} instead of {percent(measured)}")
    return ", ".join(differences) or None


def _host_extents(values: KnownValues) -> str | None:
    """Return the notice that the trace has steps of a GPU that are ranges on the host."""
    if not values.get("trace_host_extents", False):
        return None
    return "too few launches were recorded, so shares per step may cover the wrong time"


def _was_measured(values: KnownValues) -> bool:
    """Return True for a completed run that has an iteration time."""
    return values.get("outcome", "completed") == "completed" and "iteration_time_s" in values


# Notices by their subject, in the order in which they are shown.
NOTICES: dict[str, Callable[[KnownValues], str | None]] = {
    "ablated": _ablated,
    "adopted trace": _adopted,
    "not all GPUs at work in the traces": _idle_in_traces,
    DISTURBED: lambda values: values.get("disturbance"),
    NOT_STATIONARY: _drift,
    "ranks saw the same samples": _same_samples,
    "ranks may have seen the same samples": _may_share,
    UNCOUNTED: _uncounted,
    BY_BACKWARD: _by_backward,
    "pass shorter than the windows": _short_pass,
    WINDOW_DIFFERS: _window_differs,
    HOST_EXTENTS: _host_extents,
    INCONSISTENT: lambda values: values.get("inconsistency"),
    TRACE: lambda values: values.get("trace_notice"),
}

# What helps, by the subject of a notice. The texts of other notices say it themselves, or nothing helps.
REMEDIES: dict[str, str] = {
    DISTURBED: "stop other processes there, and measure again or with more repeats",
    NOT_STATIONARY: "a longer warm-up (warmup_steps) or more steps may help",
    WINDOW_DIFFERS: "step times hold, but the trace's shares of a step may be off by as much; raise profiled_steps",
}

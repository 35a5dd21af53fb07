"""What a reader must know of a completed run before believing its numbers, by its measures."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.experiment.workload import WORKLOADS

Known = Mapping[str, Any]  # values of a run without those that are empty

DISTURBED = "disturbed"
INCONSISTENT = "inconsistent record"
TRACE = "trace incomplete or corrected"
NOT_STATIONARY = "not stationary"
UNCOUNTED = "samples not counted"
BY_BACKWARD = "steps counted by backward passes"
WINDOW_DIFFERS = "profiled window unlike the measured one"
HOST_EXTENTS = "steps of a GPU timed on the host"
LEFT_OUT = 0.02  # share of the time that lies between passes, from which on that is said
UNLIKE = 0.1  # difference of a data share, and part of a step, from which on a window is unlike another
PROFILED = (WINDOW_DIFFERS, HOST_EXTENTS)  # what is the matter with numbers of the profiled window


def told(values: Mapping[str, Any]) -> dict[str, str]:
    """Notices on a run: how it is, by what is the matter; none without measures."""
    known = without_empty(values)
    return {what: how for what, notice in NOTICES.items() if (how := notice(known))}


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a run without those that are not known, whatever stands for that."""
    return {name: value for name, value in values.items() if not pd.isna(value)}


def notices(values: Mapping[str, Any]) -> list[str]:
    """Notices on a run in lines, with what is the matter."""
    return [f"{what}: {how}" for what, how in told(values).items()]


def _ablated(known: Known) -> str | None:
    """What a run went without."""
    part = known.get("ablate", "none")
    return f"it trained nothing, to measure what the {part.replace('+', ' and the ')} costs" if part != "none" else None


def _adopted(known: Known) -> str | None:
    """What an adopted run is made of, and so cannot tell."""
    work = WORKLOADS.get(known.get("workload", ""))
    if work is None or work.launches:
        return None
    steps = known.get("steps_from")
    return f"steps from {steps}, timed while a profiler recorded" if steps else "no steps were found"


def _idle_in_traces(known: Known) -> str | None:
    """How many GPUs of an adopted run the traces show at work: others were idle, or not traced."""
    traced, devices = known.get("traced_devices"), known.get("devices")
    if traced in (None, devices):
        return None
    return f"{traced:.0f} of {devices:.0f}, whose times may not be those of the slowest"


def _drift(known: Known) -> str | None:
    """How the step time changed."""
    if known.get("stationary", True):
        return None
    change = percent(known["drift"], signed=True)
    return f"step time {change} from the first to the second half of the measured steps: drift, or a slow fluctuation"


def _same_samples(known: Known) -> str | None:
    """That ranks of a script repeat one another's samples."""
    if not _is_observed(known) or known.get("distinct_share", 1) >= 1:
        return None
    return "they are counted once; a DistributedSampler gives each rank its own, unless ranks share a model"


def _may_share(known: Known) -> str | None:
    """That nobody can tell whether ranks of a script repeat one another's samples."""
    is_counted = "throughput_samples_per_s" in known or "tokens_per_s" in known
    if not _is_observed(known) or not is_counted or "distinct_share" in known:
        return None
    has_share = "distinct_share" in WORKLOADS[known["workload"]].measures
    return "it cannot be told from their loaders, so they are counted as distinct" if has_share else None


def _uncounted(known: Known) -> str | None:
    """That a run has no throughput in samples, since nobody counted them, and what to do."""
    if not _is_observed(known) or "throughput_samples_per_s" in known:
        return None
    do = "state samples_per_step or samples_per_device, or mark them: multicard.marks.step(samples=…)"
    return f"throughput is in steps, and there is no speed-up: {do}"


def _by_backward(known: Known) -> str | None:
    """That nothing but backward passes told the steps of a script, and what that may count twice."""
    if known.get("steps_by") != "backward passes":
        return None
    do = "mark each update by multicard.marks.step() if it follows several backward passes"
    return f"no optimizer of PyTorch's updated, so each backward pass counts as a step; {do}"


def _short_pass(known: Known) -> str | None:
    """That the measured steps of a script are of several passes, between which it takes time."""
    passes, between_s = known.get("measured_passes", 1), known.get("between_passes_s")
    if passes < 2:
        return None
    text = f"the measured steps are of {passes:.0f} passes"
    text += f" of {counted(round(known['steps_per_pass']), 'step')}" if "steps_per_pass" in known else ""
    if between_s is None:
        return f"{text}; what the script does between passes is not measured"
    left_out_s = between_s * (passes - 1)
    share = left_out_s / (known["elapsed_s"] + left_out_s)
    if share < LEFT_OUT:
        return None
    return f"{text}; between two of them it takes {with_unit(between_s, SECONDS)}, which is in no step"


def _window_differs(known: Known) -> str | None:
    """How the profiled window is unlike the measured one.

    Its steps are shorter, which no profiler makes them, or another share of them waits for data: batches that piled up
    before it, or steps that the profiler made longer while the loader went on.
    """
    parts, overhead = [], known.get("profiler_overhead", 0.0)
    if overhead < -UNLIKE:
        parts.append(f"steps {percent(-overhead)} shorter")
    shares = [known.get(name) for name in ("profiled_data_share", "data_share")]
    if None not in shares and abs(shares[0] - shares[1]) > UNLIKE:
        parts.append("data share {} instead of {}".format(*map(percent, shares)))
    return ", ".join(parts)


def _host_extents(known: Known) -> str | None:
    """Why steps on a GPU could not be told."""
    late = "too few launches were recorded, so shares per step may cover the wrong time"
    return late if known.get("trace_host_extents", False) else None


def _is_observed(known: Known) -> bool:
    """Whether it is a completed run whose samples were counted from outside."""
    work = WORKLOADS.get(known.get("workload", ""))
    is_complete = known.get("outcome", "completed") == "completed"
    return work is not None and work.is_user_program and is_complete and "iteration_time_s" in known


# Each says how, or nothing where it is not so.
NOTICES: dict[str, Callable[[Known], str | None]] = {
    "ablated": _ablated,
    "adopted trace": _adopted,
    "not all GPUs at work in the traces": _idle_in_traces,
    DISTURBED: lambda known: known.get("disturbance"),
    NOT_STATIONARY: _drift,
    "ranks saw the same samples": _same_samples,
    "ranks may have seen the same samples": _may_share,
    UNCOUNTED: _uncounted,
    BY_BACKWARD: _by_backward,
    "pass shorter than the windows": _short_pass,
    WINDOW_DIFFERS: _window_differs,
    HOST_EXTENTS: _host_extents,
    INCONSISTENT: lambda known: known.get("inconsistency"),
    TRACE: lambda known: known.get("trace_notice"),
}

"""What a reader must know of a completed run before believing its numbers, by its measures."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from multicard.core.text import counted
from multicard.core.units import percent
from multicard.experiment.workload import WORKLOADS, Workload

Notice = Callable[[Mapping[str, Any]], str | None]

DISTURBED = "disturbed"
DEVIATES = "not as configured"
INCONSISTENT = "inconsistent record"
TRACE = "trace incomplete or corrected"
NOT_STATIONARY = "not stationary"
SAME_SAMPLES = "ranks saw the same samples"
MAY_SHARE = "ranks may have seen the same samples"
ADOPTED = "adopted trace"
UNTRACED = "not all GPUs traced"
UNCOUNTED = "samples not counted"
SHORT_PASS = "pass shorter than the windows"
WINDOW_DIFFERS = "profiled window unlike the measured one"
HOST_EXTENTS = "steps of a GPU timed on the host"
UNLIKE = 0.1  # difference of a data share, and part of a step, from which on a window is unlike another
PROFILED = (WINDOW_DIFFERS, HOST_EXTENTS)  # what is the matter with numbers of the profiled window


def _stated(column: str) -> Notice:
    """Notice that a column of measures holds in words; None where that is empty or not there."""

    def notice(values: Mapping[str, Any]) -> str | None:
        found = values.get(column)
        return None if pd.isna(found) else found

    return notice


disturbance_notice = _stated("disturbance")  # what disturbed or throttled a run: `multicard.analysis.runs.conditions`


def drift_notice(values: Mapping[str, Any]) -> str | None:
    """How the step time of a run that was not stationary changed; None of one that was, or of which that is unknown."""
    if not _is(values, "stationary", False):
        return None
    change = percent(values["drift"], signed=True)
    return f"step time {change} from the first to the second half of the measured steps: drift, or a slow fluctuation"


def window_notice(values: Mapping[str, Any]) -> str | None:
    """How the profiled window of a run is unlike the measured one; None where it is not.

    Its steps are shorter, which no profiler makes them, or another share of them waits for data: batches that piled up
    before it, or steps that the profiler made longer while the loader went on.
    """
    parts, overhead = [], values.get("profiler_overhead")
    if not pd.isna(overhead) and overhead < -UNLIKE:
        parts.append(f"steps {percent(-overhead)} shorter")
    shares = [values.get(name) for name in ("profiled_data_share", "data_share")]
    if not any(map(pd.isna, shares)) and abs(shares[0] - shares[1]) > UNLIKE:
        parts.append("data share {} instead of {}".format(*map(percent, shares)))
    return ", ".join(parts) or None


def extent_notice(values: Mapping[str, Any]) -> str | None:
    """Why steps on a GPU could not be told; None where they are, or there is no GPU."""
    if not _is(values, "trace_host_extents", True):
        return None
    return "too few launches were recorded, so shares per step may cover the wrong time"


def sample_notice(values: Mapping[str, Any]) -> str | None:
    """That ranks of a script repeat one another's samples; None where they do not, or where it cannot be told."""
    share = _distinct_share(values)
    if pd.isna(share) or share >= 1:
        return None
    return "they are counted once; a DistributedSampler gives each rank its own, unless ranks share a model"


def share_notice(values: Mapping[str, Any]) -> str | None:
    """That nobody can tell whether ranks of a script repeat one another's samples; None where that is known."""
    counted = any(not pd.isna(values.get(name)) for name in ("throughput_samples_per_s", "tokens_per_s"))
    if not counted or not pd.isna(_distinct_share(values)):
        return None
    return "it cannot be told from their loaders, so they are counted as distinct"


def _distinct_share(values: Mapping[str, Any]) -> float | None:
    """Part of a completed run's samples that are distinct; 1 of any run that does not have to tell."""
    work = _observed(values)
    return 1.0 if work is None or "distinct_share" not in work.measures else values.get("distinct_share")


def count_notice(values: Mapping[str, Any]) -> str | None:
    """That a run of which nobody counted the samples has no throughput in them, and what to do; None where it has."""
    known = not pd.isna(values.get("throughput_samples_per_s"))
    if _observed(values) is None or known:
        return None
    do = "state samples_per_step or samples_per_device, or wrap the loader by multicard.marks"
    return f"throughput is in steps, and there is no speed-up: {do}"


def short_pass_notice(values: Mapping[str, Any]) -> str | None:
    """That the measured steps of a script are of several passes; None where they are of one."""
    passes = values.get("measured_passes")
    if pd.isna(passes) or passes < 2:
        return None
    steps = values.get("steps_per_pass")
    of = "" if pd.isna(steps) else f" of {counted(round(steps), 'step')}"
    return f"the measured steps are of {passes:.0f} passes{of}; what the script does between passes is not measured"


def adopted_notice(values: Mapping[str, Any]) -> str | None:
    """What an adopted run is made of, and so cannot tell; None of any other."""
    work = WORKLOADS.get(values.get("workload", ""))
    if work is None or work.launches:
        return None
    steps = values.get("steps_from")
    return "no steps were found" if pd.isna(steps) else f"steps from {steps}, timed while a profiler recorded"


def untraced_notice(values: Mapping[str, Any]) -> str | None:
    """How many GPUs of an adopted run the traces show; None where all of them, and of any other run."""
    traced, devices = values.get("traced_devices"), values.get("devices")
    if pd.isna(traced) or traced == devices:
        return None
    return f"{traced:.0f} of {devices:.0f}, whose times may not be those of the slowest"


# By what is the matter.
NOTICES: dict[str, Notice] = {
    ADOPTED: adopted_notice,
    UNTRACED: untraced_notice,
    DISTURBED: disturbance_notice,
    DEVIATES: _stated("deviation"),
    NOT_STATIONARY: drift_notice,
    SAME_SAMPLES: sample_notice,
    MAY_SHARE: share_notice,
    UNCOUNTED: count_notice,
    SHORT_PASS: short_pass_notice,
    WINDOW_DIFFERS: window_notice,
    HOST_EXTENTS: extent_notice,
    INCONSISTENT: _stated("inconsistency"),
    TRACE: _stated("trace_notice"),
}


def notices(values: Mapping[str, Any]) -> list[str]:
    """All notices on a run, with what is the matter; none without measures."""
    return [f"{what}: {how}" for what, notice in NOTICES.items() if (how := notice(values)) is not None]


def _observed(values: Mapping[str, Any]) -> Workload | None:
    """The workload of a completed run whose samples were counted from outside; None of any other run."""
    work = WORKLOADS.get(values.get("workload", ""))
    return work if work and work.is_user_program and not pd.isna(values.get("iteration_time_s")) else None


def _is(values: Mapping[str, Any], name: str, expected: bool) -> bool:
    """Whether a measure is known and has a value; tables that were read have NumPy's values."""
    found = values.get(name)
    return not pd.isna(found) and bool(found) is expected

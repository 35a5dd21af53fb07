"""Bottlenecks of a configuration: the parts of its step, computing included, and memory, each with its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd

from multicard.analysis.evidence import Configuration
from multicard.analysis.runs.breakdown import (
    ALLOCATING,
    COMMUNICATION,
    COMPUTE,
    COMPUTING,
    COPIES,
    DATA,
    EITHER,
    ELSEWHERE,
    EVALUATION,
    GRAPHS,
    LAUNCHES,
    LOADING_CODE,
    MOSTLY,
    OTHER,
    PARTS,
    QUEUED,
    RANKS,
    STALLS,
    SYNCHRONIZING,
    WITHIN_GRAPHS,
    parts_of,
)  # fmt: skip
from multicard.core.text import counted
from multicard.core.units import BYTES, SECONDS, percent, with_unit

KINDS = (*PARTS, "padding", "memory")
NO_GAIN = (*COMPUTING, GRAPHS, OTHER, "memory")  # kinds of which nothing tells what can be gained

LEAST = 0.05  # share of a step from which on something is a bottleneck
WORTH_A_WORD = 0.01  # share of a step from which on the largest other cost is named
FULL = 0.9  # share of a GPU's memory
NEARLY_ALL = 0.9  # share of a step above which what would remain is too uncertain for a bound


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck of a configuration."""

    kind: str  # one of `KINDS`
    share: float  # share of the step, mean over repeats; of padding that of the tokens, of memory that of the GPU's
    evidence: str  # the numbers, in words, with the file that they are from
    # Share of the bytes copied to GPUs that came from pageable memory; None where that is not known.
    pageable: float | None = None

    @property
    def gain(self) -> float | None:
        """About how many times as fast, if this part took no time and nothing else changed (Amdahl, AFIPS 1967).

        None where that would mean nothing: computing cannot vanish, and of a share near 1 too little is known. Of
        padding if time goes with the number of tokens. More is possible where ranks wait in turn within a step, or
        where a loader and computing share the CPUs.

        >>> round(Bottleneck("data loading", 0.3, "").gain, 2)
        1.43
        """
        return None if self.kind in NO_GAIN or self.share > NEARLY_ALL else 1 / (1 - self.share)


@dataclass(frozen=True)
class BottleneckReport:
    """Bottlenecks of a configuration, the largest share first.

    `parts` are all parts of its step, means over repeats: the breakdown. Empty where nothing tells them. They are `of`
    the step, or of the capture where a trace alone tells them and shows no steps.
    """

    configuration: Configuration
    bottlenecks: list[Bottleneck]
    parts: dict[str, float]
    of: str

    @property
    def largest(self) -> str | None:
        """The largest part of the step."""
        return max(self.parts, key=self.parts.__getitem__, default=None)


def report_of(configuration: Configuration, traces: Mapping[str, Mapping[str, Any]]) -> BottleneckReport:
    """The bottlenecks of a configuration; `traces` has the row of `trace_shares` of each run that has one."""
    shares = [traces.get(run.run, {}) for run in configuration.completed]
    is_capture = {each.get("scope") for each in shares} == {"capture"} and not configuration.values("iteration_time_s")
    of = "capture" if is_capture else "step"
    known = [parts for run in configuration.completed if (parts := parts_of(run.values))]
    names = dict.fromkeys(part for parts in known for part in parts)
    parts = {part: mean(parts.get(part, 0.0) for parts in known) for part in names}
    pageable = _mean_share(shares, "pageable_copies")
    traced = _mean_share(shares, "compute") is not None
    found = [
        Bottleneck(part, share, _evidence(part, share, configuration, of, traced, pageable), pageable)
        for part, share in parts.items()
        if share >= LEAST
    ]
    padding = configuration.values("padding_share")
    if padding and (share := mean(padding)) >= LEAST:
        text = f"{percent(share)} of the computed tokens are padding (measures.csv)"
        found.append(Bottleneck("padding", share, text))
    found.sort(key=lambda each: each.share, reverse=True)
    if memory := _memory(configuration):  # what does not fit comes before what takes time
        found.insert(len(found) if configuration.completed else 0, memory)
    return BottleneckReport(configuration, found, parts, of)


def summary(report: BottleneckReport) -> str:
    """Where the step goes, in a line; empty where nothing tells it."""
    kind, of = report.largest, report.of
    if kind is None:
        return ""
    share = percent(report.parts[kind])
    unseen = "idle for a reason that the trace does not show" if LAUNCHES in report.parts else NOT_SEEN
    text = f"{share} of the {of} is {unseen}"
    if kind != OTHER:
        text = f"{'mostly' if report.parts[kind] >= MOSTLY else 'largest part'} {kind} ({share} of the {of})"
    others = {part: share for part, share in report.parts.items() if part != kind}
    largest = max(others, key=others.__getitem__, default=None)
    if largest is None or others[largest] < WORTH_A_WORD:
        return text
    took = ", ".join(filter(None, (percent(others[largest]), _seconds(report.configuration, others[largest]))))
    what = "largest other cost" if kind in COMPUTING else "then"
    return f"{text}; {what} {'what no phase shows' if largest == OTHER else largest} ({took})"


def _seconds(configuration: Configuration, share: float) -> str:
    step_s = configuration.mean("iteration_time_s")
    return with_unit(share * step_s, SECONDS) if step_s else ""


def _mean_share(shares: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean over the traces that show it."""
    known = [value for each in shares if not pd.isna(value := each.get(name))]
    return mean(known) if known else None


NOT_SEEN = "in none of the phases seen"
# What each part is, after its share of the step: by a trace of GPUs, and without one.
WITH_TRACE: Mapping[str, str] = {
    COMPUTE: "the GPU computes",
    COMMUNICATION: "the GPU communicates without computing",
    RANKS: "the GPU waits for other ranks",
    COPIES: "the GPU only copies or fills memory",
    GRAPHS: "the GPU replays CUDA graphs, whose kernels were not recorded",
    LAUNCHES: "the GPU is idle while the host launches kernels one by one",
    ALLOCATING: "the GPU is idle while the host allocates, frees or registers memory",
    LOADING_CODE: "the GPU is idle while the host loads code onto it",
    SYNCHRONIZING: "the GPU is idle while the host is still in a synchronization or a blocking copy",
    ELSEWHERE: "the GPU is idle while the host makes no GPU call for a millisecond or more",
    WITHIN_GRAPHS: "the GPU is idle between two kernels of one CUDA graph",
    QUEUED: "the GPU is idle though its next kernel was launched in time: it waits for another stream or an event",
    OTHER: "the GPU is idle for a reason that the trace does not show",
}
WITHOUT: Mapping[str, str] = {
    COMPUTE: "forward, backward and optimizer",
    EITHER: "forward, backward and optimizer, communication included",
    COPIES: "the batch is copied to the device",
    DATA: "waiting for the data loader, on the rank that waited longest in each step",
    EVALUATION: "evaluation between steps",
    STALLS: "stalls between or inside steps",
    OTHER: NOT_SEEN,
}


def _evidence(
    part: str, share: float, configuration: Configuration, of: str, traced: bool, pageable: float | None
) -> str:
    """A part in numbers, with the file that they are from."""
    by_trace = traced and part in WITH_TRACE
    took = f" ({seconds})" if (seconds := _seconds(configuration, share)) else ""
    text = f"{percent(share)} of the {of}{took}: {(WITH_TRACE if by_trace else WITHOUT)[part]}"
    text += " (timeline)" if by_trace else " (measures.csv)"
    stalled = [which for run in configuration.completed if (which := run.values.get("stalled_steps"))]
    if part == STALLS and stalled:
        text += f"; steps that take far longer than the rest: {stalled[0]}"
    if part == COPIES and (pageable or 0.0) >= WORTH_A_WORD:
        text += f"; {percent(pageable)} of the bytes copied to it come from pageable memory (memory_operations)"
    return text


def _memory(configuration: Configuration) -> Bottleneck | None:
    lost = sum(run.values.get("outcome") == "out_of_memory" for run in configuration.runs)
    if lost:
        runs = counted(len(configuration.runs), "run")
        return Bottleneck("memory", 1.0, f"{lost} of {runs} ran out of memory (measures.csv)")
    used, memory = peak_memory(configuration), configuration.provenance.gpu_memory_bytes
    if not used or not memory or configuration["device"] != "cuda" or used < FULL * memory:
        return None
    of = f"{with_unit(used, BYTES)}, {percent(used / memory)} of the GPU's {with_unit(memory, BYTES)}"
    return Bottleneck("memory", used / memory, f"peak memory is {of} (measures.csv)")


def peak_memory(configuration: Configuration) -> float | None:
    """Highest known use of a device's memory in bytes, of all repeats: by everything, by PyTorch, by tensors."""
    names = ("device_memory_used_bytes", "peak_reserved_bytes", "peak_memory_bytes")
    return max((value for name in names for value in configuration.values(name)), default=None)

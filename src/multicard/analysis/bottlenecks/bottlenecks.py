"""Bottlenecks of a configuration: the parts of its step, computing included, and memory, each with its evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd

from multicard.analysis.runs.breakdown import parts_of
from multicard.analysis.runs.step_parts import COMPUTING, MOSTLY, StepPart
from multicard.core.text import counted
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.results.configuration import Configuration, MeasuredRun

# What a bottleneck may be: a part of the step, or one of the bottlenecks that are no part of it.
NAMES = (*StepPart, "padding", "memory")
# Bottlenecks of which nothing shows what can be gained.
NO_GAIN = (*COMPUTING, StepPart.GRAPHS, StepPart.OTHER, "memory")

# Share of a step from which on something is a bottleneck.
LEAST = 0.05
# Share of a step from which on the largest other cost is named.
WORTH_A_WORD = 0.01
# Share of a GPU's memory from which on memory is a bottleneck.
FULL = 0.9
# Share of a step above which what would remain is too uncertain for a bound.
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck of a configuration. Made by `report_of`."""

    # One of `NAMES`.
    name: str
    # Share of the step, for padding of the tokens, for memory of the GPU's memory. Mean over repeats.
    share: float
    # The numbers in words, with the file that they are from.
    evidence: str
    # Share of the bytes copied to GPUs that came from pageable memory; None where that is not known.
    pageable: float | None = None

    @property
    def gain(self) -> float | None:
        """About how many times as fast, if this part took no time and nothing else changed (Amdahl, AFIPS 1967).

        The gain is 1 / (1 - share). None where that would mean nothing: computing cannot vanish, and with a share near
        1 the remainder is too uncertain. For padding, time is assumed to be proportional to the number of tokens. More
        is possible where ranks wait in turn within a step, or where a loader and computing share the CPUs.

        >>> Bottleneck("data loading", 0.5, "").gain
        2.0
        """
        if self.name in NO_GAIN or self.share > NEARLY_ALL:
            return None
        return 1 / (1 - self.share)


@dataclass(frozen=True)
class BottleneckReport:
    """Bottlenecks of a configuration, the largest share first.

    `parts` has the shares of all parts of its step, means over repeats: the breakdown. It is empty where nothing was
    recorded. Shares are of the `whole`: the step, or the capture where a trace alone shows the parts, and no steps.
    """

    configuration: Configuration
    bottlenecks: list[Bottleneck]
    parts: dict[StepPart, float]
    whole: str

    @property
    def largest(self) -> StepPart | None:
        """The largest part of the step; None where no part is known."""
        return max(self.parts, key=self.parts.__getitem__, default=None)


NOT_SEEN = "in none of the phases seen"
# What each part is, to follow its share of the step: by a trace of GPUs, and without one.
WITH_TRACE: Mapping[StepPart, str] = {
    StepPart.COMPUTE: "the GPU computes",
    StepPart.COMMUNICATION: "the GPU communicates without computing",
    StepPart.RANKS: "the GPU waits for other ranks",
    StepPart.MEMORY_OPERATIONS: "the GPU only copies or fills memory",
    StepPart.GRAPHS: "the GPU replays CUDA graphs, whose kernels were not recorded",
    StepPart.LAUNCHES: "the GPU is idle while the host launches kernels one by one",
    StepPart.ALLOCATING: "the GPU is idle while the host allocates, frees or registers memory",
    StepPart.LOADING_CODE: "the GPU is idle while the host loads code onto it",
    StepPart.SYNCHRONIZING: "the GPU is idle while the host is still in a synchronization or a blocking copy",
    StepPart.HOST_ELSEWHERE: "the GPU is idle while the host makes no GPU call for a millisecond or more",
    StepPart.WITHIN_GRAPHS: "the GPU is idle between two kernels of one CUDA graph",
    StepPart.QUEUED: (
        "the GPU is idle though its next kernel was launched in time: it waits for another stream or an event"
    ),
    StepPart.OTHER: "the GPU is idle for a reason that the trace does not show",
}
WITHOUT_TRACE: Mapping[StepPart, str] = {
    StepPart.COMPUTE: "forward, backward and optimizer",
    StepPart.COMPUTE_OR_COMMUNICATION: "forward, backward and optimizer, communication included",
    StepPart.MEMORY_OPERATIONS: "the batch is copied to the device",
    StepPart.DATA: "waiting for the data loader, on the rank that waited longest in each step",
    StepPart.EVALUATION: "evaluation between steps",
    StepPart.STALLS: "stalls between or inside steps",
    StepPart.OTHER: NOT_SEEN,
}


@dataclass(frozen=True)
class _Evidence:
    """The facts by which the parts of a configuration's step are put into words."""

    configuration: Configuration
    whole: str
    is_traced: bool
    pageable: float | None

    def words(self, part: StepPart, share: float) -> str:
        """Return a part in numbers, with the file that they are from."""
        if self.is_traced and part in WITH_TRACE:
            explanation, file = WITH_TRACE[part], "timeline"
        else:
            explanation, file = WITHOUT_TRACE[part], "measures.csv"
        seconds = _seconds(self.configuration, share)
        took = f" ({seconds})" if seconds else ""
        text = f"{percent(share)} of the {self.whole}{took}: {explanation} ({file})"
        if part == StepPart.STALLS:
            stalled = [run.values["stalled_steps"] for run in self.configuration.completed if _has_stalls(run)]
            if stalled:
                text += f"; steps that take far longer than the rest: {stalled[0]}"
        if part == StepPart.MEMORY_OPERATIONS and self.pageable is not None and self.pageable >= WORTH_A_WORD:
            text += (
                f"; {percent(self.pageable)} of the bytes copied to it come from pageable memory (memory_operations)"
            )
        return text


def report_of(configuration: Configuration, traces: Mapping[str, Mapping[str, Any]]) -> BottleneckReport:
    """Return the bottlenecks of a configuration; `traces`: by run, its row of `trace_shares`, if it has one."""
    traced = [traces.get(run.run, {}) for run in configuration.completed]
    has_no_steps = {row.get("scope") for row in traced} == {"capture"}
    whole = "capture" if has_no_steps and not configuration.values("iteration_time_s") else "step"
    parts = _mean_parts(configuration)
    pageable = _mean_share(traced, "pageable_copies")
    evidence = _Evidence(configuration, whole, _mean_share(traced, "compute") is not None, pageable)
    bottlenecks = [
        Bottleneck(part, share, evidence.words(part, share), pageable)
        for part, share in parts.items()
        if share >= LEAST
    ]
    bottlenecks += _padding(configuration)
    bottlenecks.sort(key=lambda bottleneck: bottleneck.share, reverse=True)
    memory = _memory(configuration)
    if memory is not None:
        # What does not fit at all comes before what takes time, memory that is nearly full after it.
        bottlenecks.insert(len(bottlenecks) if configuration.completed else 0, memory)
    return BottleneckReport(configuration, bottlenecks, parts, whole)


def summary(report: BottleneckReport) -> str:
    """Return where the step goes, in a line; empty where nothing was recorded."""
    largest = report.largest
    if largest is None:
        return ""
    share = percent(report.parts[largest])
    if largest == StepPart.OTHER:
        is_traced = StepPart.LAUNCHES in report.parts
        unseen = "idle for a reason that the trace does not show" if is_traced else NOT_SEEN
        text = f"{share} of the {report.whole} is {unseen}"
    else:
        extent = "mostly" if report.parts[largest] >= MOSTLY else "largest part"
        text = f"{extent} {largest} ({share} of the {report.whole})"
    smaller = {part: share for part, share in report.parts.items() if part != largest}
    second = max(smaller, key=smaller.__getitem__, default=None)
    if second is None or smaller[second] < WORTH_A_WORD:
        return text
    took = ", ".join(filter(None, (percent(smaller[second]), _seconds(report.configuration, smaller[second]))))
    relation = "largest other cost" if largest in COMPUTING else "then"
    name = "what no phase shows" if second == StepPart.OTHER else second
    return f"{text}; {relation} {name} ({took})"


def peak_memory(configuration: Configuration) -> float | None:
    """Return the highest known use of a device's memory in bytes, over all repeats; None where none was recorded.

    Uses are by everything on the device, by PyTorch, and by tensors; some runs have only the last ones.
    """
    names = ("device_memory_used_bytes", "peak_reserved_bytes", "peak_memory_bytes")
    return max((value for name in names for value in configuration.values(name)), default=None)


def _mean_parts(configuration: Configuration) -> dict[StepPart, float]:
    """Return the mean share of each part over the repeats whose parts are known; a part that one lacks counts as 0."""
    parts_of_runs = [parts_of(run.values) for run in configuration.completed]
    recorded = [parts for parts in parts_of_runs if parts]
    all_parts = dict.fromkeys(part for parts in recorded for part in parts)
    return {part: mean(parts.get(part, 0.0) for parts in recorded) for part in all_parts}


def _mean_share(traced: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean over the traces that show a share; None where none does."""
    shares = [row[name] for row in traced if name in row and not pd.isna(row[name])]
    return mean(shares) if shares else None


def _seconds(configuration: Configuration, share: float) -> str:
    """Return a share of the step as a time; empty where the time of a step is not known."""
    step_s = configuration.mean("iteration_time_s")
    return with_unit(share * step_s, SECONDS) if step_s else ""


def _has_stalls(run: MeasuredRun) -> bool:
    return bool(run.values.get("stalled_steps"))


def _padding(configuration: Configuration) -> list[Bottleneck]:
    shares = configuration.values("padding_share")
    if not shares or mean(shares) < LEAST:
        return []
    share = mean(shares)
    return [Bottleneck("padding", share, f"{percent(share)} of the computed tokens are padding (measures.csv)")]


def _memory(configuration: Configuration) -> Bottleneck | None:
    """Return memory as a bottleneck: a run ran out of it, or it is nearly full; else None."""
    lost = sum(run.values.get("outcome") == "out_of_memory" for run in configuration.runs)
    if lost:
        runs = counted(len(configuration.runs), "run")
        return Bottleneck("memory", 1.0, f"{lost} of {runs} ran out of memory (measures.csv)")
    used = peak_memory(configuration)
    available = configuration.provenance.gpu_memory_bytes
    if not used or not available or configuration["device"] != "cuda" or used < FULL * available:
        return None
    share = used / available
    text = f"{with_unit(used, BYTES)}, {percent(share)} of the GPU's {with_unit(available, BYTES)}"
    return Bottleneck("memory", share, f"peak memory is {text} (measures.csv)")

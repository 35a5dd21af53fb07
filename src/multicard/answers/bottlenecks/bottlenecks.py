"""Bottlenecks of a configuration: parts of its step (computing included), padding and memory, with evidence.

The shares of the parts are those that `results.breakdown` computed for each run, averaged over repeats. `report_of`
selects the bottlenecks and puts them in words; `summary` names the two largest parts in a line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from types import MappingProxyType
from typing import Any

import pandas as pd

from multicard.answers.gain import gain_without
from multicard.core.text import counted
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.results.breakdown import MOSTLY, StepPart, parts_of
from multicard.results.configuration import Configuration, MeasuredRun

# Names of bottlenecks: the parts of the step, and two that are not parts of it.
NAMES = (*StepPart, "padding", "memory")
# The parts in which a device computes, or may compute.
COMPUTING = (StepPart.COMPUTE, StepPart.COMPUTE_OR_COMMUNICATION)
# Bottlenecks for which there is no estimate of what can be gained.
NO_GAIN = (*COMPUTING, StepPart.GRAPHS, StepPart.OTHER, "memory")

# A part is a bottleneck if it takes at least this share of the step, padding if it is at least this share of tokens.
LEAST = 0.05
# The second largest part is named if it takes at least this share of the step. Pageable memory is named if it is the
# source of at least this share of the copied bytes.
WORTH_A_WORD = 0.01
# Memory is a bottleneck if at least this share of a GPU's memory is used.
FULL = 0.9
# A part that takes more than this share of the step has no estimated gain: what would remain is too uncertain.
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck of a configuration. Made by `report_of`."""

    # One of `NAMES`.
    name: str
    # For a part of the step its share of the step, for padding the share of tokens: means over repeats. For memory the
    # largest share of a GPU's memory that was used in any repeat; 1 if a run ran out of memory.
    share: float
    # The numbers in words, with the file or table that they are from.
    evidence: str
    # Share of the bytes copied to GPUs that came from pageable memory; None if that is not known.
    pageable: float | None = None

    @property
    def gain(self) -> float | None:
        """About how many times as fast the job would be if this part took no time and nothing else changed.

        It is that of `gain_without`. None for names in `NO_GAIN`, such as computing, which cannot vanish, and for a
        share above `NEARLY_ALL`. For padding, time is assumed to be proportional to the number of tokens. The gain may
        be larger if ranks wait for each other in turn within a step, or if a loader takes CPUs away from computing.

        >>> Bottleneck("data loading", 0.5, "").gain
        2.0
        """
        if self.name in NO_GAIN or self.share > NEARLY_ALL:
            return None
        return gain_without(self.share)


@dataclass(frozen=True)
class BottleneckReport:
    """Bottlenecks of a configuration, and the breakdown of its step.

    `bottlenecks` are sorted by falling share, except memory: it is first if no run completed, else last. `parts` has
    the share of each part of the step, mean over repeats. It is empty if nothing was recorded. `whole` is the word for
    what shares are of: `step`, or `capture` if the parts are known only from a trace that shows no steps.
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
# Explanations of each part, which follow its share in texts: if a trace of GPUs shows the part, and if phases of the
# step do.
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
    StepPart.DATA: "waiting for the data loader, on the rank for which the others waited in each step",
    StepPart.EVALUATION: "evaluation between steps",
    StepPart.STALLS: "stalls between or inside steps",
    StepPart.OTHER: NOT_SEEN,
}


@dataclass(frozen=True)
class _Evidence:
    """The facts that are needed to put the parts of a configuration's step into words.

    `is_traced`: True if a trace shows how GPUs spend their time. `periods`: as of `report_of`. `BottleneckReport`
    explains `whole`, and `Bottleneck` explains `pageable`.
    """

    configuration: Configuration
    whole: str
    is_traced: bool
    pageable: float | None
    periods: Mapping[str, str]

    def words(self, part: StepPart, share: float) -> str:
        """Return the share and time of a part with its explanation, and the file or table that they are from."""
        if self.is_traced and part in WITH_TRACE:
            explanation, file = WITH_TRACE[part], "timeline"
        else:
            explanation, file = WITHOUT_TRACE[part], "measures.csv"
            if part == StepPart.OTHER:
                explanation = _not_seen(self.configuration)
        seconds = _seconds(self.configuration, share)
        took = f" ({seconds})" if seconds else ""
        text = f"{percent(share)} of the {self.whole}{took}: {explanation} ({file})"
        if part in self.periods:
            text += f"; {self.periods[part]}"
        elif part == StepPart.STALLS:
            stalled = [run.values["stalled_steps"] for run in self.configuration.completed if _has_stalls(run)]
            if stalled:
                text += f"; steps that take far longer than the rest: {stalled[0]}"
        if part == StepPart.MEMORY_OPERATIONS and self.pageable is not None and self.pageable >= WORTH_A_WORD:
            text += (
                f"; {percent(self.pageable)} of the bytes copied to it come from pageable memory (memory_operations)"
            )
        return text


def report_of(
    configuration: Configuration,
    traces: Mapping[str, Mapping[str, Any]],
    periods: Mapping[str, str] = MappingProxyType({}),
) -> BottleneckReport:
    """Return the bottlenecks of a configuration.

    `traces`: rows of `trace_shares` by run id; a run may have none. `periods`: how often steps stall or evaluate, in
    words, by the name of the part (`diagnoses.periods.words_of_parts`).
    """
    traced = [traces.get(run.run, {}) for run in configuration.completed]
    has_no_steps = {row.get("scope") for row in traced} == {"capture"}
    whole = "capture" if has_no_steps and not configuration.values("iteration_time_s") else "step"
    parts = mean_parts(configuration)
    pageable = _mean_share(traced, "pageable_copies")
    evidence = _Evidence(configuration, whole, _mean_share(traced, "compute") is not None, pageable, periods)
    bottlenecks = [
        Bottleneck(part, share, evidence.words(part, share), pageable)
        for part, share in parts.items()
        if share >= LEAST
    ]
    bottlenecks += _padding(configuration)
    bottlenecks.sort(key=lambda bottleneck: bottleneck.share, reverse=True)
    memory = _memory(configuration)
    if memory is not None:
        # If no run completed, the job does not fit into memory, which comes before all that takes time. Otherwise it
        # fits, and memory comes last.
        bottlenecks.insert(len(bottlenecks) if configuration.completed else 0, memory)
    return BottleneckReport(configuration, bottlenecks, parts, whole)


def summary(report: BottleneckReport) -> str:
    """Return in a line where the step goes: its largest part, and the second one; empty if nothing was recorded."""
    largest = report.largest
    if largest is None:
        return ""
    share = percent(report.parts[largest])
    if largest == StepPart.OTHER:
        text = f"{share} of the {report.whole} is {unseen(report)}"
    else:
        extent = "mostly" if report.parts[largest] >= MOSTLY else "largest part"
        text = f"{extent} {largest} ({share} of the {report.whole})"
    smaller = {part: share for part, share in report.parts.items() if part != largest}
    second = max(smaller, key=smaller.__getitem__, default=None)
    if second is None or smaller[second] < WORTH_A_WORD:
        return text
    took = ", ".join(filter(None, (percent(smaller[second]), _seconds(report.configuration, smaller[second]))))
    return f"{text}; next: {'outside of any phase' if second == StepPart.OTHER else second} ({took})"


def unseen(report: BottleneckReport) -> str:
    """Return what is said of the part `OTHER`, as it follows "is"."""
    if StepPart.LAUNCHES in report.parts:
        return "idle for a reason that the trace does not show"
    return _not_seen(report.configuration)


def _not_seen(configuration: Configuration) -> str:
    """Return what is said of the part `OTHER` without a trace, by whether it has the forward pass."""
    has_forward = not configuration.mean("forward_s") and bool(configuration.mean("backward_s"))
    return f"{NOT_SEEN}, the forward pass among it" if has_forward else NOT_SEEN


def peak_memory(configuration: Configuration) -> float | None:
    """Return the highest known use of a device's memory in bytes, over all repeats; None if none was recorded.

    A run may have recorded the memory that all programs use, what PyTorch reserved, and what its tensors took. The
    highest of these counts. Some runs have recorded the last one alone.
    """
    names = ("device_memory_used_bytes", "peak_reserved_bytes", "peak_memory_bytes")
    return max((value for name in names for value in configuration.values(name)), default=None)


def mean_parts(configuration: Configuration) -> dict[StepPart, float]:
    """Return the mean share of each part over the repeats with known parts. A part that one lacks counts as 0."""
    parts_of_runs = [parts_of(run.values) for run in configuration.completed]
    recorded = [parts for parts in parts_of_runs if parts]
    all_parts = dict.fromkeys(part for parts in recorded for part in parts)
    return {part: mean(parts.get(part, 0.0) for parts in recorded) for part in all_parts}


def _mean_share(traced: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a share over the traces that show it; None if none does."""
    shares = [row[name] for row in traced if name in row and not pd.isna(row[name])]
    return mean(shares) if shares else None


def _seconds(configuration: Configuration, share: float) -> str:
    """Return a share of the step as a time in words; empty if the time of a step is not known."""
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
    """Return memory as a bottleneck if a run ran out of it, or if a GPU's memory is nearly full (`FULL`); else None."""
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

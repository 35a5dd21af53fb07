"""Bottlenecks of a configuration: the parts of its step, computing included, and memory, each with its evidence."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

import pandas as pd

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun
from multicard.analysis.runs.breakdown import (
    COMMUNICATION,
    COMPUTE,
    COMPUTING,
    COPIES,
    DATA,
    EITHER,
    ELSEWHERE,
    EVALUATION,
    LAUNCHES,
    OTHER,
    RANKS,
    STALLS,
    parts_of,
)  # fmt: skip
from multicard.analysis.runs.device_time import MOSTLY
from multicard.analysis.runs.notices import NOTICES
from multicard.analysis.runs.per_run import trace_shares
from multicard.core.text import counted
from multicard.core.units import BYTES, SECONDS, percent, with_unit

Kind = Literal[
    "compute", "compute or communication", "exposed communication", "waiting for other ranks",
    "memory operations", "launch overhead", "host busy elsewhere", "data loading", "evaluation", "stalls", "other",
    "padding", "memory",
]  # fmt: skip
NO_GAIN = (*COMPUTING, OTHER, "memory")  # kinds of which nothing tells what can be gained

LEAST = 0.05  # share of a step from which on something is a bottleneck
WORTH_A_WORD = 0.01  # share of a step from which on the largest other cost is named
FULL = 0.9  # share of a GPU's memory
OVERHEAD = 0.05  # profiling overhead above which shares from the trace come with a caveat
NEARLY_ALL = 0.9  # share of a step above which what would remain is too uncertain for a bound
SHOWN_WHOLE = 0.0995  # from which on a share is in whole per cent


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck of a configuration.

    Attributes
    ----------
    share
        Share of the step, mean over repeats; of padding that of the tokens, of memory that of the GPU's.
    evidence
        The numbers, in words, with the file that they are from.
    pageable
        Share of the bytes copied to GPUs that came from pageable memory; None where that is not known.
    """

    kind: Kind
    share: float
    evidence: str
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
    """Bottlenecks of a configuration, the largest share first, and caveats.

    `parts` are all parts of its step, means over repeats: the breakdown. Empty where nothing tells them. They are `of`
    the step, or of the capture where a trace alone tells them and shows no steps.
    """

    configuration: Configuration
    bottlenecks: list[Bottleneck]
    parts: dict[str, float]
    of: str
    caveats: list[str]

    @property
    def largest(self) -> str | None:
        """The largest part of the step."""
        return max(self.parts, key=self.parts.__getitem__, default=None)


@dataclass(frozen=True)
class _Numbers:
    """Of one run: its measures, and its row of `trace_shares`, empty without a trace."""

    run: MeasuredRun
    trace: dict[str, Any]

    def share(self, name: str) -> float | None:
        """One of the shares; None where the trace does not show it."""
        value = self.trace.get(name)
        return None if value is None or pd.isna(value) else value


def bottlenecks(evidence: Evidence) -> list[BottleneckReport]:
    """Give the bottlenecks of each configuration, in their order."""
    traces = evidence.per_run(trace_shares).to_dict("index")
    reports = []
    for configuration in evidence.configurations:
        numbers = [_Numbers(run, traces.get(run.run, {})) for run in configuration.completed]
        parts, of = _mean_parts(configuration), _scope(numbers)
        pageable = _share(numbers, "pageable_copies")
        found = [
            Bottleneck(part, share, _of_part(part, share, configuration, numbers, of), pageable)
            for part, share in parts.items()
            if share >= LEAST
        ]
        padding = _padding(numbers)
        if padding is not None and padding.share >= LEAST:
            found.append(padding)
        found.sort(key=lambda each: each.share, reverse=True)
        memory = _memory(configuration)
        if memory is not None:  # what does not fit comes before what takes time
            found.insert(0 if not numbers else len(found), memory)
        reports.append(BottleneckReport(configuration, found, parts, of, _caveats(configuration)))
    return reports


def _mean_parts(configuration: Configuration) -> dict[str, float]:
    """Parts of the step, means over the repeats that have them, so that they add up."""
    known = [parts for run in configuration.completed if (parts := parts_of(run.values))]
    names = dict.fromkeys(part for parts in known for part in parts)
    return {part: mean(parts.get(part, 0.0) for parts in known) for part in names}


def summary(reports: Sequence[BottleneckReport]) -> list[str]:
    """Where the steps of configurations go, in a line for each part that is the largest of some of them."""
    led = Counter(report.largest for report in reports if report.largest is not None)
    return [
        _led_by(kind, [each for each in reports if each.largest == kind], len(reports)) for kind, _ in led.most_common()
    ]


def _led_by(kind: str, reports: Sequence[BottleneckReport], every: int) -> str:
    shares = [report.parts[kind] for report in reports]
    of = reports[0].of
    unseen = "idle for a reason that the trace does not show" if LAUNCHES in reports[0].parts else NOT_SEEN
    text = f"{_range(shares)} of the {of} is {unseen}"
    if kind != OTHER:
        text = f"{'mostly' if min(shares) >= MOSTLY else 'largest part'} {kind} ({_range(shares)} of the {of})"
    others = {
        part: [report.parts.get(part, 0.0) for report in reports]
        for part in dict.fromkeys(part for report in reports for part in report.parts)
        if part != kind
    }
    largest = max(others, key=lambda part: mean(others[part]), default=None)
    if largest is not None and mean(others[largest]) >= WORTH_A_WORD:
        took = ""
        if len(reports) == 1 and (seconds := _seconds(reports[0].configuration, others[largest][0])):
            took = f", {seconds}"
        what = "largest other cost" if kind in COMPUTING else "then"
        text += f"; {what} {_named(largest)} ({_range(others[largest])}{took})"
    return text if every == 1 else f"{len(reports)} of {counted(every, 'configuration')}: {text}"


def _named(part: str) -> str:
    return "what no phase shows" if part == OTHER else part


def _range(shares: Sequence[float]) -> str:
    if max(shares) < SHOWN_WHOLE or len(shares) == 1:
        low, high = percent(min(shares)), percent(max(shares))
    else:
        low, high = (percent(share, decimals=0) for share in (min(shares), max(shares)))
    return low if low == high else f"{low.removesuffix('%')}–{high}"


def _seconds(configuration: Configuration, share: float) -> str | None:
    step_s = configuration.mean("iteration_time_s")
    return with_unit(share * step_s, SECONDS) if step_s else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _measure(numbers: Iterable[_Numbers], name: str) -> float | None:
    return _mean(each.run.number(name) for each in numbers)


def _share(numbers: Iterable[_Numbers], name: str) -> float | None:
    return _mean(each.share(name) for each in numbers)


NOT_SEEN = "in none of the phases seen"
# What each part is, after its share of the step: by a trace of GPUs, and without one.
WITH_TRACE: Mapping[str, str] = {
    COMPUTE: "the GPU computes",
    COMMUNICATION: "the GPU communicates without computing",
    RANKS: "the GPU waits for other ranks",
    COPIES: "the GPU only copies or fills memory",
    LAUNCHES: "the GPU is idle because its next kernel is not launched yet",
    ELSEWHERE: "the GPU is idle while the host is busy with something else than launching kernels",
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


def _scope(numbers: Sequence[_Numbers]) -> str:
    scopes = {each.trace.get("scope") for each in numbers}
    return (
        "capture"
        if scopes == {"capture"} and not any(each.run.number("iteration_time_s") for each in numbers)
        else "step"
    )


def _of_part(part: str, share: float, configuration: Configuration, numbers: Sequence[_Numbers], of: str) -> str:
    traced = part in WITH_TRACE and _share(numbers, "compute") is not None
    took = f" ({seconds})" if (seconds := _seconds(configuration, share)) else ""
    text = f"{percent(share)} of the {of}{took}: {(WITH_TRACE if traced else WITHOUT)[part]}"
    if part == OTHER and not traced:
        text = f"{percent(share)} of the {of}{took} is {NOT_SEEN}"
        if all(each.run.number("forward_s") is None for each in numbers):
            text += ", and neither is the forward pass, as there is no loader of PyTorch's"
    text += " (timeline)" if traced else " (measures.csv)"
    return "; ".join([text, *_details(part, numbers)])


def _details(part: str, numbers: Sequence[_Numbers]) -> Iterable[str]:
    """What explains a part further."""
    if part == STALLS:
        which = next(filter(None, (each.run.values.get("stalled_steps") for each in numbers)), None)
        if which:
            yield f"steps that take far longer than the rest: {which}"
    if part == LAUNCHES and (waiting := _share(numbers, "synchronizations")):
        yield f"calls that wait for the device take {percent(waiting)} of the time in CUDA calls (shares)"
    if part == RANKS and (waited := _share(numbers, "waiting_in_collectives")):
        yield f"{percent(waited)} of the profiled time inside collectives, for the last rank (stragglers)"
    if part == COPIES:
        if seconds := _measure(numbers, "host_to_device_s"):
            yield f"copies from the host take {with_unit(seconds, SECONDS)} per step (measures.csv)"
        if (pageable := _share(numbers, "pageable_copies") or 0.0) >= WORTH_A_WORD:
            yield f"{percent(pageable)} of their bytes come from pageable memory (memory_operations)"


def _padding(numbers: Sequence[_Numbers]) -> Bottleneck | None:
    share = _measure(numbers, "padding_share")
    if share is None:
        return None
    return Bottleneck("padding", share, f"{percent(share)} of the computed tokens are padding (measures.csv)")


def _memory(configuration: Configuration) -> Bottleneck | None:
    lost = sum(run.values.get("outcome") == "out_of_memory" for run in configuration.runs)
    if lost:
        return Bottleneck(
            "memory", 1.0, f"{lost} of {counted(len(configuration.runs), 'run')} ran out of memory (measures.csv)"
        )
    used, memory = peak_memory(configuration).values(), configuration.provenance.gpu_memory_bytes
    if not used or not memory or configuration["device"] != "cuda":
        return None
    share = max(used) / memory
    if share < FULL:
        return None
    peak, available = with_unit(max(used), BYTES), with_unit(memory, BYTES)
    text = f"peak memory is {peak}, {percent(share)} of the GPU's {available} (measures.csv)"
    return Bottleneck("memory", share, text)


def peak_memory(configuration: Configuration) -> dict[int, float]:
    """Highest known use of a device's memory by completed repeat, in bytes: by all, by PyTorch, by tensors."""
    names = ("device_memory_used_bytes", "peak_reserved_bytes", "peak_memory_bytes")
    known = {run.repeat: [run.number(name) for name in names] for run in configuration.completed}
    return {
        repeat: max(found)
        for repeat, values in known.items()
        if (found := [value for value in values if value is not None])
    }


def _caveats(configuration: Configuration) -> list[str]:
    """What weakens the evidence."""
    caveats = []
    overhead = _mean(configuration.values("profiler_overhead"))
    if overhead is not None and abs(overhead) > OVERHEAD:
        caveats.append(
            f"profiled steps took {percent(abs(overhead))} {'more' if overhead > 0 else 'less'} time than measured "
            "ones (profiler_overhead), and shares from the trace are those of profiled steps"
        )
    for kind, notice in NOTICES.items():
        found = [how for run in configuration.completed if (how := notice(run.values)) is not None]
        if found:
            caveats.append(f"{kind} ({len(found)} of {counted(len(configuration.completed), 'repeat')}): {found[0]}")
    if len(configuration.completed) == 1:
        caveats.append("one repeat only, so a difference may be noise")
    others = [run for run in configuration.runs if run.values.get("outcome") != "completed"]
    if others and configuration.completed:
        caveats.append(f"{len(others)} of {len(configuration.runs)} repeats did not complete")
    if any(run.synthetic for run in configuration.runs):
        caveats.append("synthetic timings")
    return caveats

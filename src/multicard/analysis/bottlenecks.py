"""What holds a configuration back: parts of its step that do not compute, and memory, each with its evidence."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

import pandas as pd

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun
from multicard.core.units import BYTES, SECONDS, percent, with_unit

Kind = Literal[
    "data wait", "host-bound launches", "exposed communication", "waiting for other ranks", "transfers", "padding",
    "memory", "computation",
]  # fmt: skip

LEAST = 0.05  # part of a step below which nothing is said to hold it back
FULL = 0.9  # of a card's memory
OVERHEAD = 0.05  # cost of recording above which breakdowns by trace are read with caution


@dataclass(frozen=True)
class Bottleneck:
    """One thing that holds a configuration back.

    Attributes
    ----------
    share
        Part of the step, median over repeats; of memory the part of the card.
    evidence
        The numbers, in words, with the file that they are from.
    """

    kind: Kind
    share: float
    evidence: str


@dataclass(frozen=True)
class Held:
    """What holds a configuration back, the largest share first; what computing takes; and what to mind."""

    configuration: Configuration
    bottlenecks: list[Bottleneck]
    computation: Bottleneck | None
    cautions: list[str]


@dataclass(frozen=True)
class _Numbers:
    """Of one run: its measures, and the sums of the times that its cards spent in the steps that were profiled."""

    run: MeasuredRun
    times: dict[str, float]
    of: str
    waited: float | None  # part of the cards' time, inside collectives, for the last rank
    pageable: float | None  # part of the bytes from the host that came from pageable memory
    waiting: float | None  # part of the time of CUDA calls that is spent in those that wait for the device

    def part(self, *columns: str) -> float | None:
        """Sum of the first of some times, less the others, as part of the span."""
        found = [self.times.get(f"{column}_s") for column in columns]
        if None in found or not self.times.get("span_s"):
            return None
        first, *others = found
        return max(0.0, (first - sum(others)) / self.times["span_s"])


def bottlenecks(evidence: Evidence) -> list[Held]:
    """What holds each configuration back, in their order; those of which no run has an outcome are left out."""
    tables = {name: evidence.table(name) for name in ("timeline", "stragglers", "memory_operations", "shares")}
    found = []
    for configuration in evidence.configurations:
        numbers = [_numbers(run, tables) for run in configuration.completed]
        listed = [
            bottleneck
            for look in (_data, _host, _communication, _ranks, _transfers, _padding)
            if (bottleneck := look(numbers)) is not None and bottleneck.share >= LEAST
        ]
        listed.sort(key=lambda each: each.share, reverse=True)
        memory = _memory(configuration)
        if memory is not None:  # what does not fit holds back more than what takes time
            listed.insert(0 if not numbers else len(listed), memory)
        found.append(Held(configuration, listed, _computation(numbers), _cautions(configuration)))
    return found


def _numbers(run: MeasuredRun, tables: dict[str, dict[str, pd.DataFrame]]) -> _Numbers:
    times, of = {}, ""
    rows = tables["timeline"].get(run.run)
    if rows is not None:
        of = "step" if (rows["scope"] == "step").any() else "capture"
        rows = rows[rows["scope"] == of]
        sums = rows.drop(columns=["step"]).select_dtypes("number").sum(min_count=1)
        times = {name: float(value) for name, value in sums.items() if name.endswith("_s") and pd.notna(value)}
    waited = None
    stragglers = tables["stragglers"].get(run.run)
    if stragglers is not None and rows is not None:
        whole = tables["timeline"][run.run]
        span = whole.loc[whole["scope"] == "capture", "span_s"].sum()
        waited = float(stragglers["waited_s"].sum() / span) if span > 0 else None
    copies, pageable = tables["memory_operations"].get(run.run), None
    if copies is not None:
        copies = copies[copies["operation"] == "host_to_device"]
        moved = copies["bytes"].sum()
        pageable = float(copies.loc[copies["host_memory"] == "pageable", "bytes"].sum() / moved) if moved > 0 else None
    shares, waiting = tables["shares"].get(run.run), None
    if shares is not None:
        shares = shares[shares["share"] == "synchronizations"]
        calls = shares["of_s"].sum()
        waiting = float(shares["total_s"].sum() / calls) if calls > 0 else None
    return _Numbers(run, times, of, waited, pageable, waiting)


def _median(numbers: Iterable[_Numbers], value: Callable[[_Numbers], float | None]) -> float | None:
    known = [found for each in numbers if (found := value(each)) is not None]
    return median(known) if known else None


def _measure(numbers: Iterable[_Numbers], name: str) -> float | None:
    return _median(numbers, lambda each: each.run.number(name))


def _data(numbers: list[_Numbers]) -> Bottleneck | None:
    share, seconds = _measure(numbers, "data_share"), _measure(numbers, "data_s")
    if share is None:
        return None
    took = f", {with_unit(seconds, SECONDS)} per step" if seconds is not None else ""
    return Bottleneck("data wait", share, f"{percent(share)} of the step waits for the loader{took} (measures.csv)")


def _host(numbers: list[_Numbers]) -> Bottleneck | None:
    """Idle time before late launches; as much of it as the loader can explain counts as data wait."""
    idle = _median(numbers, lambda each: each.part("idle_host_bound"))
    if idle is None:
        return None
    data = _measure(numbers, "data_share") or 0.0
    less = f"; up to {percent(min(data, idle))} is the wait for data and not counted here" if data >= 0.01 else ""
    text = f"for {percent(idle)} of the {_span(numbers)} the card is idle and its next work not yet launched{less}"
    waiting = _median(numbers, lambda each: each.waiting)
    waits = (
        f"; calls that wait for the device take {percent(waiting)} of the time of CUDA calls (shares)"
        if waiting
        else ""
    )
    return Bottleneck("host-bound launches", max(0.0, idle - data), f"{text} (timeline){waits}")


def _communication(numbers: list[_Numbers]) -> Bottleneck | None:
    share = _median(numbers, lambda each: each.part("exposed_communication"))
    if share is None:
        return None
    waited = _median(numbers, lambda each: each.waited)
    waits = f"; waiting for the last rank inside collectives is {percent(waited)} (stragglers)" if waited else ""
    text = f"for {percent(share)} of the {_span(numbers)} the card communicates and does not compute (timeline){waits}"
    return Bottleneck("exposed communication", share, text)


def _ranks(numbers: list[_Numbers]) -> Bottleneck | None:
    share = _median(numbers, lambda each: each.part("idle_collective"))
    if share is None:
        return None
    text = f"for {percent(share)} of the {_span(numbers)} the card is idle until a collective begins (timeline)"
    return Bottleneck("waiting for other ranks", share, text)


def _transfers(numbers: list[_Numbers]) -> Bottleneck | None:
    """Copies and fills while the card does nothing else; without a timeline, the phase that copies the batch."""
    share = _median(numbers, lambda each: each.part("busy", "compute", "exposed_communication"))
    if share is not None:
        seconds = _measure(numbers, "host_to_device_s")
        pageable = _median(numbers, lambda each: each.pageable)
        text = f"for {percent(share)} of the {_span(numbers)} the card copies or fills memory and does nothing else"
        text += " (timeline)"
        text += f"; copies from the host take {with_unit(seconds, SECONDS)} per step (measures.csv)" if seconds else ""
        text += (
            f"; {percent(pageable)} of what they move is from pageable memory (memory_operations)" if pageable else ""
        )
        return Bottleneck("transfers", share, text)
    known = [each for each in numbers if each.run.number("transfer_s") and each.run.number("mean_iteration_time_s")]
    share = _median(known, lambda each: each.run.number("transfer_s") / each.run.number("mean_iteration_time_s"))
    if share is None:
        return None
    return Bottleneck("transfers", share, f"{percent(share)} of the step copies the batch to the device (measures.csv)")


def _padding(numbers: list[_Numbers]) -> Bottleneck | None:
    share = _measure(numbers, "padding_share")
    if share is None:
        return None
    return Bottleneck("padding", share, f"{percent(share)} of the computed positions are padding (measures.csv)")


def _computation(numbers: list[_Numbers]) -> Bottleneck | None:
    """What computing takes: kernels that do not communicate, or without a timeline the phases that compute."""
    share = _median(numbers, lambda each: each.part("compute"))
    if share is not None:
        text = f"for {percent(share)} of the {_span(numbers)} the card computes"
        other = _median(numbers, lambda each: each.part("idle_other"))
        text += f", for {percent(other)} it is idle for reasons that the trace does not tell" if other else ""
        text += " (timeline)"
        return Bottleneck("computation", share, text)
    phases = ("forward_s", "backward_s", "optimizer_s")

    def of_the_step(each: _Numbers) -> float | None:
        seconds = [found for name in phases if (found := each.run.number(name)) is not None]
        step = each.run.number("mean_iteration_time_s")
        return sum(seconds) / step if seconds and step else None

    share = _median(numbers, of_the_step)
    if share is None:
        return None
    text = f"{percent(share)} of the step is forward, backward and optimizer, communication included (measures.csv)"
    return Bottleneck("computation", share, text)


def _memory(configuration: Configuration) -> Bottleneck | None:
    lost = sum(run.values.get("outcome") == "out_of_memory" for run in configuration.runs)
    if lost:
        return Bottleneck("memory", 1.0, f"{lost} of {len(configuration.runs)} runs ran out of memory (measures.csv)")
    used, card = peak_memory(configuration), configuration.place.card_memory_bytes
    if not used or not card or configuration["device"] != "cuda":
        return None
    share = max(used) / card
    if share < FULL:
        return None
    peak, memory = with_unit(max(used), BYTES), with_unit(card, BYTES)
    text = f"peak memory is {peak}, {percent(share)} of the GPU's {memory} (measures.csv)"
    return Bottleneck("memory", share, text)


def peak_memory(configuration: Configuration) -> list[float]:
    """Highest known use of a device's memory of each completed repeat, in bytes: by all, by PyTorch, by tensors."""
    names = ("device_memory_used_bytes", "peak_reserved_bytes", "peak_memory_bytes")
    known = [[run.number(name) for name in names] for run in configuration.completed]
    return [max(found) for values in known if (found := [value for value in values if value is not None])]


def _cautions(configuration: Configuration) -> list[str]:
    """What weakens the evidence."""
    said = []
    costs = configuration.values("profiler_overhead")
    if costs and abs(median(costs)) > OVERHEAD:
        said.append(
            f"steps that were recorded took {percent(abs(median(costs)))} {'more' if median(costs) > 0 else 'less'} "
            "time than the measured ones (profiler_overhead), and what the trace says holds for them"
        )
    if len(configuration.completed) == 1:
        said.append("one repeat only: no difference can be told from chance")
    others = [run for run in configuration.runs if run.values.get("outcome") != "completed"]
    if others and configuration.completed:
        said.append(f"{len(others)} of {len(configuration.runs)} repeats did not complete")
    if any(run.synthetic for run in configuration.runs):
        said.append("synthetic data")
    return said


def _span(numbers: list[_Numbers]) -> str:
    return "profiled steps" if any(each.of == "step" for each in numbers) else "capture"

"""Bottlenecks of a configuration: the parts of its step that do not compute, and memory, each with its evidence."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import pandas as pd

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun, Provenance
from multicard.analysis.notices import NOTICES
from multicard.analysis.per_run import trace_shares
from multicard.analysis.scaling import BASELINE_DIFFERS
from multicard.core.text import counted
from multicard.core.units import BYTES, SECONDS, percent, with_unit

Kind = Literal[
    "data loading", "launch overhead", "exposed communication", "waiting for other ranks", "memory operations",
    "waiting for a CPU", "waiting", "host busy elsewhere", "padding", "memory", "compute",
]  # fmt: skip

LEAST = 0.05  # share of a step from which on something is a bottleneck
FULL = 0.9  # share of a GPU's memory
OVERHEAD = 0.05  # profiling overhead above which shares from the trace come with a caveat


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck of a configuration.

    Attributes
    ----------
    share
        Share of the step, median over repeats; of memory the share of the GPU's.
    evidence
        The numbers, in words, with the file that they are from.
    """

    kind: Kind
    share: float
    evidence: str

    @property
    def most_gain(self) -> float | None:
        """Factor on the speed if this part of the step took no time, and nothing else changed; None of memory.

        Of padding as if a step took time in proportion to its tokens. Amdahl, AFIPS 1967.

        >>> round(Bottleneck("data loading", 0.3, "").most_gain, 2)
        1.43
        """
        return None if self.kind == "memory" or self.share >= 1 else 1 / (1 - self.share)


@dataclass(frozen=True)
class BottleneckReport:
    """Bottlenecks of a configuration, the largest share first; what computing takes; and caveats."""

    configuration: Configuration
    bottlenecks: list[Bottleneck]
    compute: Bottleneck | None
    caveats: list[str]


@dataclass(frozen=True)
class _Numbers:
    """Of one run: its measures, and its row of `trace_shares`, empty without a trace."""

    run: MeasuredRun
    trace: dict[str, Any]

    def share(self, *names: str) -> float | None:
        """Sum of some shares; None where the trace does not show them."""
        found = [self.trace.get(name) for name in names]
        return None if any(value is None or pd.isna(value) for value in found) else sum(found)

    @property
    def is_on_cpus(self) -> bool:
        """Whether it trained on CPUs."""
        return self.run.values.get("device") == "cpu"

    @property
    def waited_for_data(self) -> float:
        """Wait for data in the profiled steps as a share of the trace's time per step; 0 where it is not known."""
        seconds, step_s = self.run.number("profiled_data_s"), self.run.number("trace_iteration_time_s")
        return seconds / step_s if seconds and step_s else 0.0

    @property
    def elsewhere(self) -> float:
        """Share of the trace in which the GPU is idle while the host does something else than launching work."""
        return self.share("idle (host busy elsewhere)") or 0.0


def bottlenecks(evidence: Evidence) -> list[BottleneckReport]:
    """Give the bottlenecks of each configuration, in their order; those without a run that ended are left out."""
    traces = evidence.per_run(trace_shares).to_dict("index")
    alone = {
        each.rest(BASELINE_DIFFERS): _median([_Numbers(run, {}) for run in each.completed], _blocked_s)
        for each in evidence.configurations
        if each["devices"] == 1
    }
    reports = []
    for configuration in evidence.configurations:
        numbers = [_Numbers(run, traces.get(run.run, {})) for run in configuration.completed]
        ranks = partial(_ranks, blocked_alone_s=alone.get(configuration.rest(BASELINE_DIFFERS)))
        found = [
            bottleneck
            for look in (_data, _launches, _elsewhere, _communication, ranks, _cpus, _memory_operations, _padding)
            if (bottleneck := look(numbers)) is not None and bottleneck.share >= LEAST
        ]
        found.sort(key=lambda each: each.share, reverse=True)
        memory = _memory(configuration)
        if memory is not None:  # what does not fit comes before what takes time
            found.insert(0 if not numbers else len(found), memory)
        reports.append(BottleneckReport(configuration, found, _compute(numbers), _caveats(configuration)))
    return reports


def bounds_of(rows: Iterable[Mapping[str, Any]], traces: pd.DataFrame) -> dict[str, str | None]:
    """What takes most of the step of each run, by its id: `loader`, `host`, `communication` or `compute`.

    None of a run that did not complete, or whose time of computing is not known. Where no trace tells communication
    from computing, several devices are bound by `compute or communication`.

    Parameters
    ----------
    rows
        Measures of the runs.
    traces
        As `trace_shares` gives them.
    """
    shares = traces.to_dict("index")
    return {row["run"]: _bound(_Numbers(_measured(row), shares.get(row["run"], {}))) for row in rows}


# Parts that a step is divided into, in the words of the bottlenecks.
PARTS = (
    "compute", "compute or communication", "exposed communication", "waiting for other ranks", "memory operations",
    "launch overhead", "data loading", "other",
)  # fmt: skip


def parts_of_steps(rows: Iterable[Mapping[str, Any]], traces: pd.DataFrame) -> pd.DataFrame:
    """Shares of `PARTS` in the step of each run, named by the index; they add up to 1. Parameters as of `bounds_of`.

    By the trace they are of the profiled steps, where idle time counts as data loading as far as the wait for data
    explains it; without one of the measured steps by their phases, which tell computing from communication on one
    device only. A run of which neither tells has no row.
    """
    shares = traces.to_dict("index")
    found = {row["run"]: _parts(_Numbers(_measured(row), shares.get(row["run"], {}))) for row in rows}
    known = {run: parts for run, parts in found.items() if parts is not None}
    return pd.DataFrame.from_dict(known, orient="index", columns=list(PARTS), dtype=float)


def _parts(numbers: _Numbers) -> dict[str, float] | None:
    compute = _compute([numbers])
    if compute is None:
        return None
    idle, of_compute = numbers.share("idle (host-bound)"), "compute"
    if idle is None:
        of_compute = "compute or communication" if (numbers.run.number("devices") or 1) > 1 else "compute"
        step_s, data_s, transfer_s = map(numbers.run.number, ("mean_iteration_time_s", "data_s", "transfer_s"))
        found = {"data loading": (data_s or 0.0) / step_s, "memory operations": (transfer_s or 0.0) / step_s}
    else:
        data = min(idle + numbers.elsewhere, numbers.waited_for_data)
        found = {
            "exposed communication": numbers.share("exposed communication"),
            "waiting for other ranks": numbers.share("idle (before a collective)"),
            "memory operations": numbers.share("exposed memory operations"),
            "launch overhead": min(idle, idle + numbers.elsewhere - data),
            "data loading": data,
        }
    found = dict.fromkeys(PARTS, 0.0) | {of_compute: compute.share} | found
    return found | {"other": max(0.0, 1.0 - sum(found.values()))}


def _measured(row: Mapping[str, Any]) -> MeasuredRun:
    return MeasuredRun(row["run"], "", row, Provenance())


def _bound(numbers: _Numbers) -> str | None:
    values, compute = numbers.run.values, _compute([numbers])
    if compute is None or values["outcome"] != "completed":
        return None
    looks = {"loader": (_data,), "host": (_launches, _elsewhere), "communication": (_communication, _ranks)}
    shares = {
        bound: sum(found.share for look in each if (found := look([numbers])) is not None)
        for bound, each in looks.items()
    }
    undivided = values["devices"] > 1 and numbers.share("exposed communication") is None
    shares["compute or communication" if undivided else "compute"] = compute.share
    return max(shares, key=shares.__getitem__)


def _median(numbers: Iterable[_Numbers], value: Callable[[_Numbers], float | None]) -> float | None:
    known = [found for each in numbers if (found := value(each)) is not None]
    return median(known) if known else None


def _measure(numbers: Iterable[_Numbers], name: str) -> float | None:
    return _median(numbers, lambda each: each.run.number(name))


def _share(numbers: Iterable[_Numbers], *names: str) -> float | None:
    return _median(numbers, lambda each: each.share(*names))


def _data(numbers: list[_Numbers]) -> Bottleneck | None:
    share, seconds = _measure(numbers, "data_share"), _measure(numbers, "data_s")
    if share is None:
        return None
    took = f", {with_unit(seconds, SECONDS)} per step" if seconds is not None else ""
    return Bottleneck(
        "data loading", share, f"{percent(share)} of the step is spent waiting for the data loader{took} (measures.csv)"
    )


def _launches(numbers: list[_Numbers]) -> Bottleneck | None:
    """Idle time before late launches; as much of it as the loader can explain counts as data loading.

    Both are of the profiled steps: in the measured ones the wait for the loader may be another.
    """
    known = [
        (idle, min(idle, max(0.0, each.waited_for_data - each.elsewhere)))
        for each in numbers
        if (idle := each.share("idle (host-bound)")) is not None
    ]
    if not known:
        return None
    idle, data = map(median, zip(*known, strict=True))
    text = f"for {percent(idle)} of {_scope(numbers)} the GPU is idle because its next kernel is not launched yet"
    if data >= 0.01:
        text += f"; up to {percent(data)} of these steps is the wait for data and not counted here"
    text += " (timeline)"
    waiting = _share(numbers, "synchronizations")
    if waiting:
        text += f"; calls that wait for the device take {percent(waiting)} of the time in CUDA calls (shares)"
    return Bottleneck("launch overhead", median(every - explained for every, explained in known), text)


def _elsewhere(numbers: list[_Numbers]) -> Bottleneck | None:
    """Idle time in which the host launches nothing, beyond the wait for the loader that the record tells."""
    share = _median(numbers, lambda each: max(0.0, each.elsewhere - each.waited_for_data))
    if not share:
        return None
    text = f"for {percent(share)} of {_scope(numbers)} the GPU is idle while the host makes no CUDA call"
    return Bottleneck("host busy elsewhere", share, f"{text}, such as while it loads data (timeline)")


def _communication(numbers: list[_Numbers]) -> Bottleneck | None:
    share = _share(numbers, "exposed communication")
    if share is None:
        return None
    text = f"for {percent(share)} of {_scope(numbers)} the GPU communicates without computing (timeline)"
    waited = _share(numbers, "waiting_in_collectives")
    if waited:
        text += f"; GPUs wait {percent(waited)} of the time inside collectives for the last rank (stragglers)"
    return Bottleneck("exposed communication", share, text)


def _blocked_s(each: _Numbers) -> float | None:
    """Seconds of a step in which a rank neither runs nor waits for a CPU or for data."""
    share, step_s = each.run.number("blocked_share"), each.run.number("mean_iteration_time_s")
    return None if share is None or step_s is None else share * step_s


def _ranks(numbers: list[_Numbers], blocked_alone_s: float | None = None) -> Bottleneck | None:
    """Waits for other ranks; on CPUs what a rank is blocked for beyond what it is on one device.

    `blocked_alone_s`: `_blocked_s` on one device with the same parameters; None where that is not known.
    """
    share = _share(numbers, "idle (before a collective)")
    if share is not None:
        text = f"for {percent(share)} of {_scope(numbers)} the GPU is idle until a collective starts (timeline)"
        return Bottleneck("waiting for other ranks", share, text)
    several = [each for each in numbers if each.is_on_cpus and each.run.number("devices") > 1]
    share, step_s = _measure(several, "blocked_share"), _measure(several, "mean_iteration_time_s")
    if share is None:
        return None
    if blocked_alone_s is None or not step_s:
        text = f"for {percent(share)} of the step a rank neither runs nor waits for a CPU or for data: it may wait for "
        return Bottleneck(
            "waiting", share, f"{text}others, or sleep, which a run on one device would tell (measures.csv)"
        )
    more = max(0.0, share - blocked_alone_s / step_s)
    text = f"for {percent(more)} of the step, more than on one device, a rank neither runs nor waits for a CPU or for "
    return Bottleneck("waiting for other ranks", more, f"{text}data, as while it exchanges data (measures.csv)")


def _cpus(numbers: list[_Numbers]) -> Bottleneck | None:
    """Of training on CPUs: on a GPU a step may go on while its rank waits for a CPU."""
    share = _measure([each for each in numbers if each.is_on_cpus], "cpu_wait_share")
    if share is None:
        return None
    text = f"for {percent(share)} of the step a rank is ready to run and has no CPU (measures.csv)"
    return Bottleneck("waiting for a CPU", share, text)


def _memory_operations(numbers: list[_Numbers]) -> Bottleneck | None:
    """Copies and fills while the GPU does nothing else; without a timeline, the phase that copies the batch."""
    share = _share(numbers, "exposed memory operations")
    if share is not None:
        text = f"for {percent(share)} of {_scope(numbers)} the GPU only copies or fills memory (timeline)"
        seconds, pageable = _measure(numbers, "host_to_device_s"), _share(numbers, "pageable_copies")
        if seconds:
            text += f"; copies from the host take {with_unit(seconds, SECONDS)} per step (measures.csv)"
        if pageable:
            text += f"; {percent(pageable)} of their bytes come from pageable memory (memory_operations)"
        return Bottleneck("memory operations", share, text)
    known = [each for each in numbers if each.run.number("transfer_s") and each.run.number("mean_iteration_time_s")]
    share = _median(known, lambda each: each.run.number("transfer_s") / each.run.number("mean_iteration_time_s"))
    if share is None:
        return None
    return Bottleneck(
        "memory operations", share, f"copying the batch to the device takes {percent(share)} of the step (measures.csv)"
    )


def _padding(numbers: list[_Numbers]) -> Bottleneck | None:
    share = _measure(numbers, "padding_share")
    if share is None:
        return None
    return Bottleneck("padding", share, f"{percent(share)} of the computed tokens are padding (measures.csv)")


def _compute(numbers: list[_Numbers]) -> Bottleneck | None:
    """What computing takes: kernels that do not communicate, or without a timeline the phases that compute."""
    share = _share(numbers, "compute", "compute and communication")
    if share is not None:
        text = f"for {percent(share)} of {_scope(numbers)} the GPU computes"
        other = _share(numbers, "idle (other)")
        text += f"; for {percent(other)} it is idle for a reason that the trace does not show" if other else ""
        return Bottleneck("compute", share, f"{text} (timeline)")
    phases = ("forward_s", "backward_s", "optimizer_s")

    def of_the_step(each: _Numbers) -> float | None:
        seconds = [found for name in phases if (found := each.run.number(name)) is not None]
        step = each.run.number("mean_iteration_time_s")
        return sum(seconds) / step if seconds and step else None

    share = _median(numbers, of_the_step)
    if share is None:
        return None
    text = f"forward, backward and optimizer take {percent(share)} of the step, communication included (measures.csv)"
    return Bottleneck("compute", share, text)


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
    overheads = configuration.values("profiler_overhead")
    if overheads and abs(overhead := median(overheads)) > OVERHEAD:
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
        caveats.append("synthetic data")
    return caveats


def _scope(numbers: list[_Numbers]) -> str:
    return "the profiled steps" if any(each.trace.get("scope") == "steps" for each in numbers) else "the capture"

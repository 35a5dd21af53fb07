"""Steps of a capture whose program did not mark them for multicard.

They are told, in this order, by ranges of a stated name; by ranges that are named as steps are; by what PyTorch writes
of its optimizers; and by the kernels of optimizers. All processes with kernels must be told by the same.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from multicard.core.text import counted
from multicard.trace.captured_events import CapturedEvents
from multicard.trace.kernel_classes import CLASSES
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers, Steps, Trace, shared_name
from multicard.trace.steps import LONG_AGO, RECORDED, ROUNDING_NS, STEP, Owner, is_warm_up, warms_up

# Other names of a step, without what tells single ones apart: Lightning's among them.
LIKE_STEP = re.compile(
    r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter|batch)|run_training_batch|step\[…\]|execute…", re.IGNORECASE
)
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")  # PyTorch, torch/optim/optimizer.py: profile_hook_step
NUMBER = re.compile(r"[ _#:-]*\d+$")
# Engines of inference write what a step consists of: vLLM `execute_32_context_0(…)_generation_32(…)`, SGLang
# `step[DECODE bs=32]`.
VLLM_STEP = re.compile(r"execute_(?:\d+_)?(?:context|new)_\d.*", re.DOTALL)
SGLANG_STEP = re.compile(r"step\[[^\[\]]*\]")

# Kernels that an optimizer has none of: between two of its kernels they tell two updates apart.
OF_THE_MODEL = ("attention", "convolution", "matrix_multiply", "normalization", "pooling")
ALIKE = 0.1  # difference of two numbers of kernels, as a part


@dataclass(frozen=True)
class FoundSteps:
    """What was found in the traces of one capture."""

    source: str | None  # what tells the steps, in words; None where nothing does
    steps: dict[Owner, Steps]  # steps of each process with kernels; empty where nothing tells them
    devices: dict[Owner, list[int | None]]  # devices on which each process ran kernels
    ranges: list[str]  # names of ranges of these processes, the most frequent first
    notices: tuple[str, ...] = ()  # lines on steps that were found and do not count


def find_steps(traces: Sequence[Trace], stated: str | None = None) -> FoundSteps:
    """Find the steps of one capture.

    `stated`: name of the ranges that are steps, without their number; others are not looked for then.

    Raises `TraceError` if a trace turns out to be damaged.
    """
    capture = CapturedEvents(traces, {"ranges", "kernels", "memory", "api", "launches"})
    if capture.kernels is None or not len(capture.kernels.code):
        return FoundSteps(None, {}, {}, [])
    ranges, processes = _ranges(capture, stated), _processes(capture)
    if stated is not None:
        found, notices = _by_name(stated, ranges, processes), ()
    else:
        found, notices = _by_rules(capture, ranges, processes)
    counts = Counter[str]()
    for owner in processes:
        counts.update({name: len(own.starts) for name, own in ranges.get(owner, {}).items()})
    devices = {owner: of.devices for owner, of in processes.items()}
    return FoundSteps(*found, devices, [name for name, _ in counts.most_common()], notices)


def with_steps(traces: Sequence[Trace], steps: Mapping[Owner, Steps]) -> list[Trace]:
    """The same traces with these steps, in the place of ranges named `step`."""
    of_trace: list[dict[int, Steps]] = [{} for _ in traces]
    for (number, process), own in steps.items():
        of_trace[number][process] = own
    return [replace(trace, steps=own) for trace, own in zip(traces, of_trace, strict=True)]


class _Process(NamedTuple):
    """Kernels of a process in order of their starts: their devices, classes, times and launching calls."""

    devices: list[int | None]
    device: Integers  # index into `devices`
    kind: Integers  # index into `CLASSES`
    start: Integers
    end: Integers
    call: Integers

    @property
    def launched(self) -> Integers:
        """When each was launched; where that is not known, when it began, or `LONG_AGO` before the first known one."""
        known = self.call != UNKNOWN
        launched = np.where(known, self.call, self.start)
        if known.any():
            launched[: known.argmax()] = LONG_AGO
        return launched


Ranges = Mapping[Owner, Mapping[str, Steps]]
Processes = Mapping[Owner, _Process]
Found = tuple[str | None, dict[Owner, Steps]]
NOT_FOUND: Found = (None, {})


def _ranges(capture: CapturedEvents, stated: str | None) -> Ranges:
    """Ranges by process and name, without those inside another of the same name; threads of those that may be steps."""
    found: dict[Owner, dict[str, Steps]] = {}
    if capture.ranges is None:
        return found
    members: dict[tuple[int, int, str], list[int]] = {}
    threads: list[int | None] = []
    for code, (trace, process, name, thread) in enumerate(capture.ranges.values("process", "name", "thread")):
        members.setdefault((trace, process, _unnumbered(name)), []).append(code)
        threads.append(thread)
    order = np.argsort(capture.ranges.code, kind="stable")
    code = capture.ranges.code[order]
    starts = capture.ranges.arrays["start"][order].astype(np.int64)
    ends = starts + capture.ranges.arrays["duration"][order].astype(np.int64)
    first = np.searchsorted(code, np.arange(len(threads) + 1))
    for (trace, process, name), codes in members.items():
        at = np.concatenate([np.arange(first[each], first[each + 1]) for each in codes])
        at = at[np.lexsort((-ends[at], starts[at]))]
        before = np.append(-(1 << 62), np.maximum.accumulate(ends[at])[:-1])
        outer = (before <= starts[at]) | ((before <= starts[at] + ROUNDING_NS) & (before < ends[at]))
        at, before = at[outer], before[outer]
        may_be = LIKE_STEP.fullmatch(name) or OPTIMIZER_STEP.match(name) or (stated and name == _unnumbered(stated))
        of = [threads[each] for each in code[at].tolist()] if may_be else []  # of operators there may be millions
        found.setdefault((trace, process), {})[name] = Steps(np.maximum(starts[at], before), ends[at], threads=of)
    return found


def _processes(capture: CapturedEvents) -> dict[Owner, _Process]:
    """The processes with kernels, in their order."""
    kernels = capture.kernels
    assert kernels is not None
    call = kernels.arrays["call"] if capture.linked else np.full(len(kernels.code), UNKNOWN)
    kind_of = np.array([CLASSES.index(kind) for _, kind in kernels.values("class")], np.int32)
    found = {}
    for owner in sorted({place[:2] for place in kernels.places}, key=str):
        own = {place[2]: at for place, at in kernels.places.items() if place[:2] == owner}
        devices = sorted(own, key=str)
        at = np.concatenate([np.arange(own[device].start, own[device].stop) for device in devices])
        device = np.repeat(np.arange(len(devices)), [own[device].stop - own[device].start for device in devices])
        order = np.argsort(kernels.arrays["start"].take(at), kind="stable")
        at, device = at.take(order), device.take(order)
        start = kernels.arrays["start"].take(at).astype(np.int64)
        end = start + kernels.arrays["duration"].take(at).astype(np.int64)
        found[owner] = _Process(devices, device, kind_of.take(kernels.code.take(at)), start, end, call.take(at))
    return found


def _unnumbered(name: str) -> str:
    """Name of a range without what tells single steps apart.

    >>> [_unnumbered(name) for name in ("batch 7", "step[DECODE bs=32]", "execute_context_1(512)_generation_31(31)")]
    ['batch', 'step[…]', 'execute…']
    """
    if VLLM_STEP.fullmatch(name):
        return "execute…"
    if SGLANG_STEP.fullmatch(name):
        return "step[…]"
    return NUMBER.sub("", shared_name(name)) or name


def _by_rules(capture: CapturedEvents, ranges: Ranges, processes: Processes) -> tuple[Found, tuple[str, ...]]:
    """Steps by the first rule that finds some that do not warm up, and lines on those that do where no rule does."""
    notices = []
    for rule in (_by_likely_name, _by_annotations, _by_kernels):
        source, steps = rule(capture, ranges, processes)
        measured = {owner: _without_warm_up(own, ranges.get(owner, {})) for owner, own in steps.items()}
        if source is not None and all(len(own.starts) for own in measured.values()):
            return (source, measured), ()
        if source is not None:
            count = max(len(own.starts) for own in steps.values())
            notices.append(
                f"{counted(count, 'step')} by {source} not counted: the program's own ranges say that it warmed up then"
            )
    return NOT_FOUND, tuple(notices[:1])


def _without_warm_up(steps: Steps, ranges: Mapping[str, Steps]) -> Steps:
    """The steps of a process that do not lie in its ranges of warm-up."""
    around = [
        window
        for name, own in ranges.items()
        if is_warm_up(name)
        for window in zip(own.starts.tolist(), own.ends.tolist(), strict=True)
    ]
    if not around:
        return steps
    times = list(zip(steps.starts.tolist(), steps.ends.tolist(), strict=True))
    kept = [number for number, (start, end) in enumerate(times) if not warms_up(start, end, around)]
    return Steps(steps.starts[kept], steps.ends[kept], steps.extent, [steps.threads[number] for number in kept])


def _by_name(name: str, ranges: Ranges, processes: Processes) -> Found:
    """Steps that are the ranges of one name."""
    name = _unnumbered(name)
    found = {owner: own[name] for owner in processes if name in (own := ranges.get(owner, {}))}
    return (f"the ranges {name!r}", found) if len(found) == len(processes) else NOT_FOUND


def _by_likely_name(capture: CapturedEvents, ranges: Ranges, processes: Processes) -> Found:
    """Steps that are ranges named as steps are; of names that carry no number, only if they repeat."""
    names = dict.fromkeys(name for owner in processes for name in ranges.get(owner, {}) if LIKE_STEP.fullmatch(name))
    for name in sorted(names, key=lambda name: name != STEP):
        words, found = _by_name(name, ranges, processes)
        if words and (name == STEP or min(len(steps.starts) for steps in found.values()) > 1):
            return "ranges of steps, such as ProfilerStep#N" if name == STEP else words, found
    return NOT_FOUND


def _by_annotations(capture: CapturedEvents, ranges: Ranges, processes: Processes) -> Found:
    """Steps that end as an optimizer of PyTorch's has updated the weights, by the ranges that it writes."""

    def of_one(owner: Owner, process: _Process) -> Steps | None:
        updates = [(end, thread) for name, own in ranges.get(owner, {}).items() if OPTIMIZER_STEP.match(name)
                   for end, thread in zip(own.ends.tolist(), own.threads, strict=True)]  # fmt: skip
        updates.sort(key=lambda update: update[0])
        if len(updates) < 2:
            return None
        moments = np.array([end for end, _ in updates])
        counts = np.diff(np.searchsorted(np.sort(process.launched), moments))
        medians = [np.median(counts[first::2]) for first in range(min(2, len(counts)))]
        if max(medians) - min(medians) > ALIKE * max(medians):
            return None  # several optimizers that take turns
        return _between(moments, [thread for _, thread in updates])

    return _of_all("PyTorch's annotations of Optimizer.step", processes, of_one)


def _by_kernels(capture: CapturedEvents, ranges: Ranges, processes: Processes) -> Found:
    """Steps that end as a group of kernels of an optimizer is launched."""
    model = [CLASSES.index(kind) for kind in OF_THE_MODEL]

    def of_one(owner: Owner, process: _Process) -> Steps | None:
        updates = process.kind == CLASSES.index("optimizer")
        if not updates.any():
            return None
        on = process.device == np.bincount(process.device[updates]).argmax()
        recorded = process.call != UNKNOWN
        if recorded[on].any():
            # What the device still had to do as the capture began tells no step: its calls are not known.
            on &= np.arange(len(on)) >= (on & recorded).argmax()
            if not updates[on].any():
                return None
        updates, of_model, call, end = updates[on], np.isin(process.kind[on], model), process.call[on], process.end[on]
        at = np.flatnonzero(updates)
        group = np.cumsum(of_model)[at]  # kernels of the model before it: the same of all kernels of a group
        firsts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        sizes = np.diff(np.append(firsts, len(at)))
        called = np.maximum.reduceat(call[at], firsts)
        moments = called + 1  # what was launched at that moment belongs to the step that ends
        if (called == UNKNOWN).any():
            if (call != UNKNOWN).mean() >= RECORDED:
                return None
            moments = np.maximum.reduceat(end[at], firsts)
        totals = np.diff(np.maximum.reduceat(at, firsts))
        # Where a step begins with kernels like the optimizer's, those of the last step have no successor.
        for count in (len(sizes), len(sizes) - 1):
            if count > 2 and _repeat(sizes[1:count], totals[: count - 1]) and (np.diff(moments[:count]) > 0).all():
                return _between(moments[:count], _threads(capture, owner, called[:count]))
        return None

    return _of_all("kernels of an optimizer", processes, of_one)


def _of_all(source: str, processes: Processes, rule: Callable[[Owner, _Process], Steps | None]) -> Found:
    """What a rule finds in every process; nothing where it fails in one."""
    found = {}
    for owner, process in processes.items():
        steps = rule(owner, process)
        if steps is None or not len(steps.starts):
            return NOT_FOUND
        found[owner] = steps
    return source, found


def _between(moments: Integers, threads: Sequence[int | None]) -> Steps:
    """Steps from each moment to the next, of the thread that ends them."""
    return Steps(moments[:-1], moments[1:], threads=threads[1:])


def _repeat(sizes: Integers, totals: Integers) -> bool:
    """Whether updates have equal numbers of the optimizer's kernels, and similar ones of all since the last one."""
    apart = np.abs(np.diff(totals)) <= ALIKE * np.maximum(totals[1:], totals[:-1])
    return len(sizes) > 1 and bool((sizes == sizes[0]).all() and apart.all())


def _threads(capture: CapturedEvents, owner: Owner, called: Integers) -> list[int | None]:
    """The threads that made calls that began at these moments; None of those that were not recorded."""
    threads: dict[int, int | None] = {}
    if capture.api is not None:
        own = capture.api.at(owner)
        thread_of, start, code = capture.api.values("thread"), capture.api.arrays["start"][own], capture.api.code[own]
        made = np.flatnonzero(np.isin(start, called))
        pairs = zip(start[made].tolist(), code[made].tolist(), strict=True)
        threads = {moment: thread_of[code][1] for moment, code in pairs}
    return [threads.get(moment) for moment in called.tolist()]

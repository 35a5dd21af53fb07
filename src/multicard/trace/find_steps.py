"""Find the steps of a capture whose program did not mark them for multicard.

If the user states the name of the ranges that are steps, only these ranges count. Else three rules are tried in this
order: ranges named as steps usually are; the ranges that PyTorch writes around updates by its optimizers; the kernels
of optimizers. The first rule that shows steps in all processes with kernels decides. Steps inside the program's own
ranges of warm-up do not count for these rules.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from multicard.core.text import counted
from multicard.trace.captured_events import CapturedEvents
from multicard.trace.events import Owner
from multicard.trace.kernel_classes import CLASSES
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers, Steps, Trace
from multicard.trace.named_ranges import LIKE_STEP, OPTIMIZER_STEP, Ranges, named_ranges, unnumbered
from multicard.trace.process_kernels import ProcessKernels, process_kernels
from multicard.trace.steps import LEAST_RECORDED_SHARE, STEP, is_warm_up, warms_up

# Classes of kernels that an optimizer does not launch. If a kernel of one of these classes runs between two kernels of
# the optimizer, these two belong to two different updates.
_MODEL_CLASSES = ("attention", "convolution", "matrix_multiply", "normalization", "pooling")
# Two numbers of kernels are similar if they differ by at most this part of the larger one.
_ALIKE = 0.1


@dataclass(frozen=True)
class FoundSteps:
    """The steps of the traces of one capture, made by `find_steps`.

    `source`: what shows the steps, in words; None if no steps were found. `steps`: the steps of each process that ran
    kernels; empty if none were found. `devices`: the devices on which each process ran kernels. `ranges`: the names of
    all ranges of these processes, without their numbers, the most frequent first. `notices`: lines on steps that were
    found but do not count.
    """

    source: str | None
    steps: dict[Owner, Steps]
    devices: dict[Owner, list[int | None]]
    ranges: list[str]
    notices: tuple[str, ...] = ()


def find_steps(traces: Sequence[Trace], stated: str | None = None) -> FoundSteps:
    """Find the steps of one capture.

    `stated`: the name of the ranges that are steps; a number at its end is ignored. If it is given, steps are not
    looked for in any other way, and those inside ranges of warm-up count, too.

    Raises `TraceError` if a trace turns out to be damaged.
    """
    capture = CapturedEvents(traces, {"ranges", "kernels", "memory", "api", "launches"})
    if capture.kernels is None or not len(capture.kernels.code):
        return FoundSteps(None, {}, {}, [])
    events = _Events(capture, named_ranges(capture.ranges, stated), process_kernels(capture, capture.kernels))
    if stated is not None:
        result = _Result(_by_name(events, unnumbered(stated)))
    else:
        result = _by_rules(events)

    range_counts = Counter[str]()
    for owner in events.processes:
        for name, ranges in events.ranges_of(owner).items():
            range_counts[name] += len(ranges.starts)
    return FoundSteps(
        source=None if result.answer is None else result.answer.source,
        steps={} if result.answer is None else result.answer.steps,
        devices={owner: kernels.devices for owner, kernels in events.processes.items()},
        ranges=sorted(range_counts, key=lambda name: (-range_counts[name], name)),
        notices=result.notices,
    )


def with_steps(traces: Sequence[Trace], steps: Mapping[Owner, Steps]) -> list[Trace]:
    """Return copies of the traces that have these steps, and no others that ranges mark."""
    steps_of_traces: list[dict[int, Steps]] = [{} for _ in traces]
    for (trace_number, process), steps_of_process in steps.items():
        steps_of_traces[trace_number][process] = steps_of_process
    return [replace(trace, steps=steps_of_trace) for trace, steps_of_trace in zip(traces, steps_of_traces, strict=True)]


@dataclass(frozen=True)
class _Events:
    """What the rules examine: the ranges and the kernels of each process, and the whole capture for its calls."""

    capture: CapturedEvents
    ranges: Ranges
    processes: Mapping[Owner, ProcessKernels]

    def ranges_of(self, owner: Owner) -> Mapping[str, Steps]:
        """Return the ranges of a process by name."""
        return self.ranges.get(owner, {})


@dataclass(frozen=True)
class _Answer:
    """The steps of all processes with kernels, and what shows them, in words."""

    source: str
    steps: dict[Owner, Steps]


@dataclass(frozen=True)
class _Result:
    """The answer, None if no rule has one, and lines on steps that were found but do not count."""

    answer: _Answer | None
    notices: tuple[str, ...] = ()


def _by_rules(events: _Events) -> _Result:
    """Return the steps that the first successful rule shows, without those that warm up.

    A rule succeeds if it shows steps in every process, and every process still has some without those that warm up. If
    no rule succeeds, there is no answer, but a notice on the steps of the first rule that showed only warm-up.
    """
    notices = []
    for rule in (_by_likely_name, _by_annotations, _by_kernels):
        answer = rule(events)
        if answer is None:
            continue
        measured: dict[Owner, Steps] = {}
        for owner, steps in answer.steps.items():
            measured[owner] = _without_warm_up(steps, events.ranges_of(owner))
        if all(len(steps.starts) for steps in measured.values()):
            return _Result(_Answer(answer.source, measured))
        count = max(len(steps.starts) for steps in answer.steps.values())
        notices.append(
            f"{counted(count, 'step')} by {answer.source} not counted: the program's own ranges say that it warmed up "
            "then"
        )
    return _Result(None, tuple(notices[:1]))


def _without_warm_up(steps: Steps, ranges: Mapping[str, Steps]) -> Steps:
    """Return the steps of a process without those that have their middle in one of its ranges of warm-up."""
    warm_up: list[tuple[int, int]] = []
    for name, named in ranges.items():
        if is_warm_up(name):
            warm_up += zip(named.starts.tolist(), named.ends.tolist(), strict=True)
    if not warm_up:
        return steps
    times = zip(steps.starts.tolist(), steps.ends.tolist(), strict=True)
    kept = [number for number, (start, end) in enumerate(times) if not warms_up(start, end, warm_up)]
    return Steps(
        starts=steps.starts[kept],
        ends=steps.ends[kept],
        extent=steps.extent,
        threads=[steps.threads[number] for number in kept],
    )


def _by_name(events: _Events, name: str) -> _Answer | None:
    """Return the ranges of one name as steps; None if a process has no range of this name."""
    steps: dict[Owner, Steps] = {}
    for owner in events.processes:
        named = events.ranges_of(owner).get(name)
        if named is None:
            return None
        steps[owner] = named
    return _Answer(f"the ranges {name!r}", steps)


def _by_likely_name(events: _Events) -> _Answer | None:
    """Return ranges named as steps usually are; None if there are none that count.

    Ranges named `step` count first. These are all ranges that `shared_name` renames so, such as ProfilerStep#7 and
    iteration, and one in each process is enough. Ranges of any other name that `LIKE_STEP` matches, such as batch 7,
    count only if each process has at least two of them.
    """
    # A dictionary keeps the order in which the names occur, each once.
    names: dict[str, None] = {}
    for owner in events.processes:
        for name in events.ranges_of(owner):
            if LIKE_STEP.fullmatch(name):
                names[name] = None
    if STEP in names:
        answer = _by_name(events, STEP)
        if answer is not None:
            return _Answer("ranges of steps, such as ProfilerStep#N", answer.steps)
    for name in names:
        answer = _by_name(events, name)
        if name == STEP or answer is None:
            continue
        least_count = min(len(steps.starts) for steps in answer.steps.values())
        if least_count > 1:
            return answer
    return None


def _by_annotations(events: _Events) -> _Answer | None:
    """Return steps that end when an optimizer of PyTorch has updated the weights, by PyTorch's range of each update."""
    return _of_all("PyTorch's annotations of Optimizer.step", events, _annotated_steps)


def _annotated_steps(events: _Events, owner: Owner) -> Steps | None:
    """Return the steps of a process, each from the end of one update to the end of the next.

    None if there are fewer than two updates, or if two optimizers take turns, so that an update is not a whole step.
    """
    ends_and_threads: list[tuple[int, int | None]] = []
    for name, ranges in events.ranges_of(owner).items():
        if OPTIMIZER_STEP.match(name):
            ends_and_threads += zip(ranges.ends.tolist(), ranges.threads, strict=True)
    if len(ends_and_threads) < 2:
        return None
    # Threads may be None, so only the ends can be compared.
    ends_and_threads.sort(key=lambda update: update[0])
    update_ends = np.array([end for end, _ in ends_and_threads])
    threads = [thread for _, thread in ends_and_threads]

    launched = np.sort(events.processes[owner].launched)
    kernels_before = np.searchsorted(launched, update_ends)
    if _take_turns(kernels_between=np.diff(kernels_before)):
        return None
    return _between(update_ends, threads)


def _take_turns(kernels_between: Integers) -> bool:
    """Return True if the numbers of kernels between updates show two optimizers that take turns, as in a GAN.

    They do if the median of every second number, from the first one on, is not similar to the median of the others.

    >>> _take_turns(np.array([100, 40, 100, 40])), _take_turns(np.array([100, 98, 101, 100]))
    (True, False)
    """
    if len(kernels_between) < 2:
        return False
    odd = np.median(kernels_between[::2])
    even = np.median(kernels_between[1::2])
    return bool(abs(odd - even) > _ALIKE * max(odd, even))


def _by_kernels(events: _Events) -> _Answer | None:
    """Return steps that end when the last kernel of an optimizer's update is launched."""
    return _of_all("kernels of an optimizer", events, _kernel_steps)


def _kernel_steps(events: _Events, owner: Owner) -> Steps | None:
    """Return the steps of a process, each from one update to the next, by the kernels of the optimizer on one device.

    A step begins and ends when an update is launched or, if too few launching calls were recorded, when the device has
    done it. None if there are fewer than three updates, or if they do not repeat regularly.
    """
    kernels = _of_updating_device(events.processes[owner])
    if kernels is None:
        return None
    updates = _updates(kernels)
    # A step ends one nanosecond after the last launch of its update begins, so that this launch still belongs to it.
    moments = updates.last_call + 1
    if (updates.last_call == UNKNOWN).any():
        # If most calls were recorded, `steps_on_device` later takes the steps for times of the host. The host's time of
        # such an update is not known, so there is no answer. If too few calls were recorded, `steps_on_device` keeps
        # the steps as they are, so they may be times of the device.
        recorded_share = (kernels.call != UNKNOWN).mean()
        if recorded_share >= LEAST_RECORDED_SHARE:
            return None
        moments = updates.end
    # If steps begin with kernels that look like the optimizer's, these join the update before them. No step follows the
    # last update, so it has fewer kernels than the others. Hence the last update is left out in a second try.
    for count in (len(moments), len(moments) - 1):
        if count <= 2:
            continue
        # The capture may have begun within the first update, so its size does not count.
        is_regular = _repeat(updates.sizes[1:count], updates.kernels_since_last[: count - 1])
        is_rising = (np.diff(moments[:count]) > 0).all()
        if is_regular and is_rising:
            return _between(moments[:count], _threads(events.capture, owner, updates.last_call[:count]))
    return None


def _of_updating_device(kernels: ProcessKernels) -> ProcessKernels | None:
    """Return the kernels on the device with most kernels of an optimizer.

    If launching calls were recorded, the kernels before the first one with a recorded call are left out, because they
    were launched before the capture began. None if no kernel of an optimizer remains.
    """
    is_update = kernels.kernel_class == CLASSES.index("optimizer")
    if not is_update.any():
        return None
    updates_of_device = np.bincount(kernels.device[is_update])
    is_chosen = kernels.device == updates_of_device.argmax()
    is_recorded = is_chosen & (kernels.call != UNKNOWN)
    if is_recorded.any():
        first_recorded = is_recorded.argmax()
        is_chosen[:first_recorded] = False
        if not is_update[is_chosen].any():
            return None
    return ProcessKernels(
        devices=kernels.devices,
        device=kernels.device[is_chosen],
        kernel_class=kernels.kernel_class[is_chosen],
        start=kernels.start[is_chosen],
        end=kernels.end[is_chosen],
        call=kernels.call[is_chosen],
    )


@dataclass(frozen=True)
class _Updates:
    """Updates of the weights in order: groups of kernels of an optimizer with no kernel of the model between them.

    `sizes`: the number of the optimizer's kernels in each update. `last_call`: when the last launching call of these
    kernels began, `UNKNOWN` if any of their calls was not recorded. `end`: when all of them had ended.
    `kernels_since_last`: for each update but the first, the number of kernels of any class after the last kernel of the
    previous update, up to and including its own last one.
    """

    sizes: Integers
    last_call: Integers
    end: Integers
    kernels_since_last: Integers


def _updates(kernels: ProcessKernels) -> _Updates:
    """Return the updates among the kernels of one device, at least one of which is an optimizer's.

    Seven kernels are launched at 0 to 6, and each ends 10 later. Those of the optimizer are in two groups with a matrix
    product between them, the first of 2 and the second of 3. The last one of all comes 5 kernels after the last one of
    the first group:

    >>> names = ["optimizer", "optimizer", "matrix_multiply", "other", "optimizer", "optimizer", "optimizer"]
    >>> call = np.arange(7)
    >>> kernels = ProcessKernels(
    ...     devices=[0],
    ...     device=np.zeros(7, int),
    ...     kernel_class=np.array([CLASSES.index(name) for name in names]),
    ...     start=call + 5,
    ...     end=call + 10,
    ...     call=call,
    ... )
    >>> updates = _updates(kernels)
    >>> updates.sizes.tolist(), updates.last_call.tolist(), updates.end.tolist(), updates.kernels_since_last.tolist()
    ([2, 3], [1, 6], [11, 16], [5])
    """
    model_classes = [CLASSES.index(name) for name in _MODEL_CLASSES]
    is_of_model = np.isin(kernels.kernel_class, model_classes)
    positions = np.flatnonzero(kernels.kernel_class == CLASSES.index("optimizer"))
    # Kernels of the optimizer belong to the same update if equally many kernels of the model precede them.
    model_kernels_before = np.cumsum(is_of_model)[positions]
    is_first = np.append(True, model_kernels_before[1:] != model_kernels_before[:-1])
    firsts = np.flatnonzero(is_first)
    last_positions = np.maximum.reduceat(positions, firsts)
    return _Updates(
        sizes=np.diff(np.append(firsts, len(positions))),
        last_call=np.maximum.reduceat(kernels.call[positions], firsts),
        end=np.maximum.reduceat(kernels.end[positions], firsts),
        kernels_since_last=np.diff(last_positions),
    )


def _repeat(sizes: Integers, totals: Integers) -> bool:
    """Return True if updates have equal numbers of the optimizer's kernels, and similar numbers of all kernels.

    >>> _repeat(np.array([4, 4, 4]), np.array([100, 95, 101])), _repeat(np.array([4, 4]), np.array([100, 50]))
    (True, False)
    """
    if len(sizes) < 2:
        return False
    differences = np.abs(np.diff(totals))
    larger = np.maximum(totals[1:], totals[:-1])
    are_similar = (differences <= _ALIKE * larger).all()
    are_equal = (sizes == sizes[0]).all()
    return bool(are_equal and are_similar)


def _threads(capture: CapturedEvents, owner: Owner, call_starts: Integers) -> list[int | None]:
    """Return the thread that made the call that began at each moment; None if no such call was recorded."""
    if capture.api is None:
        return [None] * len(call_starts)
    starts = capture.api.array_at("start", owner)
    codes = capture.api.codes_at(owner)
    is_wanted = np.isin(starts, call_starts)
    thread_of_code = capture.api.group_field("thread")
    thread_of_start: dict[int, int | None] = {}
    for start, code in zip(starts[is_wanted].tolist(), codes[is_wanted].tolist(), strict=True):
        thread_of_start[start] = thread_of_code[code]
    return [thread_of_start.get(moment) for moment in call_starts.tolist()]


def _of_all(source: str, events: _Events, rule: Callable[[_Events, Owner], Steps | None]) -> _Answer | None:
    """Return the steps that a rule shows; None if the rule shows no steps in any one of the processes."""
    steps_of_owner: dict[Owner, Steps] = {}
    for owner in events.processes:
        steps = rule(events, owner)
        if steps is None or not len(steps.starts):
            return None
        steps_of_owner[owner] = steps
    return _Answer(source, steps_of_owner)


def _between(moments: Integers, threads: Sequence[int | None]) -> Steps:
    """Return the steps from each moment to the next, each with the thread of the moment at which it ends."""
    return Steps(starts=moments[:-1], ends=moments[1:], threads=threads[1:])

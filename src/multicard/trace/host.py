"""What the host does in each moment: which kind of call it is in, or, between calls, whether it loads data."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import cached_property, partial
from operator import eq

import numpy as np

from multicard.trace.api_calls import HostActivity, host_activity
from multicard.trace.collect import Events, Place
from multicard.trace.intervals import (
    ALL_TIME,
    FIRST,
    LAST,
    NOTHING,
    CommonMeasure,
    Intervals,
    Measure,
    complement,
    difference,
    intersection,
    together,
    union,
)
from multicard.trace.model import Integers
from multicard.trace.steps import Marks

# Waiting for the next batch: multicard's phase, and the range of PyTorch's DataLoader (torch/utils/data/dataloader.py).
DATA = re.compile(r"data|enumerate\(DataLoader\).*", re.IGNORECASE)
# Running the model, though some operators launch nothing for a while.
MODEL = re.compile(
    r"\W*(?:forward|backward|optimizer)\W*|aten::.*|Optimizer\..*|DistributedDataParallel\.forward", re.IGNORECASE
)

# Eager launches follow each other within microseconds. From 1 ms without any call nothing is being launched where the
# host is outside its steps. Within steps a pause must stand out from those between the program's own operators, which
# a profiler may slow down.
PAUSE_NS = 1_000_000
PAUSE_FACTOR = 100  # times the median pause

# A launching call that loads the code of its kernel first, as CUDA does by default since 12.2 ("lazy loading", CUDA C++
# Programming Guide), takes from a tenth of a millisecond to seconds, where others take microseconds.
LOADING_LAUNCH_NS = 100_000
LOADING_LAUNCH_FACTOR = 10  # times the usual launching call
FIRST_LAUNCH = "first launch of a kernel"
SAMPLE = 10_000  # launching calls that tell the usual one


NO_ACTIVITY = -1

Counts = Callable[[int | None], bool]  # whether a thread counts


class Host:
    """What one process does on the host, made from its calls, ranges and steps."""

    def __init__(
        self,
        api: Events,
        ranges: Events | None,
        marks: Marks,
        owner: Place,
        loading: Intervals = NOTHING,
        host_calls: Events | None = None,
    ) -> None:
        """Take the events of all processes.

        `owner` is the trace and the process that this is about. `loading`: launching calls that load code, as
        `loading_launches` finds them. `host_calls`: calls of the operating system and of MPI, where they were recorded.
        """
        self._api, self._owner, self._host_calls = api, owner, host_calls
        self._loading = loading
        callers = [thread for *place, thread in api.values("process", "thread") if tuple(place) == owner]
        self._threads = {thread: self._of_calls(partial(eq, thread), FIRST, LAST) for thread in dict.fromkeys(callers)}
        self._ranges, self._marks = ranges, marks
        self._outside: dict[frozenset[int | None], tuple[Intervals, Intervals]] = {}

    def thread(self, thread: int | None) -> "HostThread":
        """Return what one thread does, which makes calls."""
        return self._threads[thread]

    def outside(self, threads: Iterable[int | None] | None = None) -> tuple[Intervals, Intervals]:
        """Return the moments in which some threads make no call: while data is loaded, and otherwise for long.

        These are the threads that launch onto a device: what others do, such as pinning memory or asking for events,
        keeps none of these from launching. By default they are all threads that make calls.
        """
        chosen = frozenset(self._threads if threads is None else threads)
        if chosen not in self._outside:
            calls = [self._threads[thread].calls for thread in chosen if len(self._threads[thread].calls)]
            data = NOTHING if self._ranges is None else _moments(self._ranges, self._owner, DATA)
            for of_thread in calls:
                data = difference(data, of_thread)
            pauses = _long_pauses(calls, self._ranges, self._marks, self._owner)
            self._outside[chosen] = (data, difference(pauses, data))
        return self._outside[chosen]

    def any_thread(self, first: int, last: int) -> "HostThread":
        """Return what the process does between two moments, whichever of its threads."""
        return self._of_calls(lambda caller: True, first, last)

    def _of_calls(self, counts: Counts, first: int, last: int) -> "HostThread":
        """Return what the threads do that count, by their calls between two moments."""
        activity_of_code = np.full(len(self._api.groups), NO_ACTIVITY, np.int8)
        for code, _, activity in self._counted(counts):
            activity_of_code[code] = activity
        part = self._api.at(self._owner)
        start, duration = self._api.arrays["start"][part], self._api.arrays["duration"][part]
        activities = activity_of_code.take(self._api.code[part])
        is_counted = activities >= 0
        if (first, last) != (FIRST, LAST):
            is_counted &= (start < last) & (start.astype(np.int64) + duration > first)
        if not is_counted.all():
            own = np.flatnonzero(is_counted)
            start, duration, activities = start.take(own), duration.take(own), activities.take(own)
        start = start.astype(np.int64)
        end = start + duration
        calls = union(start, end)
        is_nested = len(calls) < len(start)  # or some touch, or take no time

        loading = intersection(self._loading, calls)
        covered = NOTHING
        moments: dict[HostActivity, Intervals] = {}
        # Where calls of several kinds overlap, the first kind of this list counts, so that the moments are disjoint. It
        # is usually that of the inner call, as of a library that is loaded within a launch. Launching calls are by far
        # the most, so they are what remains of `calls`.
        for activity in (HostActivity.LOADING_CODE, HostActivity.ALLOCATING, HostActivity.WAITING, HostActivity.OTHER):
            own = np.flatnonzero(activities == activity)
            of_activity = union(start.take(own), end.take(own))
            if activity is HostActivity.LOADING_CODE and len(loading):
                of_activity = together([of_activity, loading])
            if is_nested or len(loading):
                moments[activity] = difference(of_activity, covered)
                covered = together([covered, of_activity])
            else:
                moments[activity] = of_activity
        return HostThread(self, counts, calls, moments)

    def _counted(self, counts: Counts) -> list[tuple[int, str, HostActivity]]:
        """Return code, function and activity of the groups of calls by the threads that count."""
        return [
            (code, function, host_activity(function))
            for code, (trace, process, api, function, thread) in enumerate(
                self._api.values("process", "api", "name", "thread")
            )
            if (trace, process) == self._owner and api != "backtrace" and counts(thread)
        ]

    def function_in(self, counts: Counts, activity: HostActivity, gaps: Intervals) -> str | None:
        """Return the function of an activity in which the threads that count spend most time of some gaps.

        Where they call only one such function, it is returned without a look at the gaps. Of launching calls, which are
        many, it is the one that is called most often in all. Code that a launch loads is named `FIRST_LAUNCH`, whatever
        the function. None if there is no such call.
        """
        if activity is HostActivity.LAUNCHING:
            return self._most_called_launching(counts)
        of_function: dict[str, list[int]] = {}
        for code, function, its_activity in self._counted(counts):
            if its_activity is activity:
                of_function.setdefault(function, []).append(code)
        if len(of_function) == 1 and not (activity is HostActivity.LOADING_CODE and len(self._loading)):
            return next(iter(of_function))
        loaded = {FIRST_LAUNCH: self._loading} if activity is HostActivity.LOADING_CODE else {}
        moments = {name: _union_of(self._api, self._owner, codes) for name, codes in of_function.items()} | loaded
        return _longest(moments, gaps)

    def _most_called_launching(self, counts: Counts) -> str | None:
        """Return the launching function that the threads that count call most often."""
        calls: dict[str, int] = {}
        for code, function, activity in self._counted(counts):
            if activity is HostActivity.LAUNCHING:
                calls[function] = calls.get(function, 0) + int(self._calls_of_code[code])
        return max(calls, key=calls.__getitem__, default=None)

    @cached_property
    def _calls_of_code(self) -> Integers:
        """Number of calls of the process in each group."""
        return np.bincount(self._api.code[self._api.at(self._owner)], minlength=len(self._api.groups))

    def library_function_in(self, counts: Counts, gaps: Intervals) -> str | None:
        """Return the function of the operating system or of MPI that takes most of some gaps.

        None if no such calls were recorded, or no function takes more than half of the gaps.
        """
        if self._host_calls is None:
            return None
        of_function: dict[str, list[int]] = {}
        for code, (trace, process, function, thread) in enumerate(self._host_calls.values("process", "name", "thread")):
            if (trace, process) == self._owner and counts(thread):
                of_function.setdefault(function, []).append(code)
        moments = {name: _union_of(self._host_calls, self._owner, codes) for name, codes in of_function.items()}
        return _longest(moments, gaps, more_than=_length(gaps) // 2)


class HostThread:
    """The moments of one thread, or of all threads of a process, by what the host does in them.

    `calls`: in any call. `moments`: in calls of each kind but launching, disjoint.
    """

    def __init__(self, host: Host, counts: Counts, calls: Intervals, moments: dict[HostActivity, Intervals]) -> None:
        self._host, self._counts = host, counts
        self.calls = calls
        self.moments = moments

    def function_in(self, activity: HostActivity, gaps: Intervals) -> str | None:
        """Return the function of an activity with most time in some gaps."""
        return self._host.function_in(self._counts, activity, gaps)

    def library_function_in(self, gaps: Intervals) -> str | None:
        """Return the function of the operating system or of MPI with most time in some gaps."""
        return self._host.library_function_in(self._counts, gaps)


def loading_launches(kernels: Events | None, owner: Place) -> Intervals:
    """Return the launching calls of a process in which the code of a kernel was loaded.

    These are the first launches of a kernel, by its name, that take far longer than launches usually do.
    """
    if kernels is None:
        return NOTHING
    found = []
    for place, part in kernels.places.items():
        if place[:2] != owner:
            continue
        call, returned = kernels.arrays["call"][part], kernels.arrays["returned"][part]
        lasting = np.where(returned > call, returned - call, 0)  # of an unknown call both are the same
        if "by_graph" in kernels.arrays:  # the replay of a graph takes its time for all that is in it
            lasting[kernels.arrays["by_graph"][part]] = 0
        long = np.flatnonzero(lasting >= LOADING_LAUNCH_NS)
        if not len(long):
            continue
        first = _first_of_name(kernels, part, call, long)
        repeated = np.ones(len(lasting), bool)
        repeated[first] = False
        sample = slice(None, None, len(lasting) // SAMPLE + 1)
        others = lasting[sample][repeated[sample]]
        usual = np.median(others) if len(others) else 0
        outstanding = first[lasting.take(first) >= LOADING_LAUNCH_FACTOR * usual]
        found.append(union(call.take(outstanding), returned.take(outstanding)))
    return together(found)


def _first_of_name(kernels: Events, part: slice, call: Integers, candidates: Integers) -> Integers:
    """Return those of some kernels, by their positions, that were launched first of all with their name."""
    name_of_code = [name for _, name in kernels.values("name")]
    code = kernels.code[part]
    first_call: dict[str, int] = {}
    for name in {name_of_code[number] for number in np.unique(code.take(candidates)).tolist()}:
        same = kernels.mask([other == name for other in name_of_code], part)
        first_call[name] = int(call[same].min())
    first = [at for at in candidates.tolist() if first_call[name_of_code[code[at]]] == call[at]]
    return np.array(first, np.int64)


def _long_pauses(calls: list[Intervals], ranges: Events | None, marks: Marks, owner: Place) -> Intervals:
    """Return the moments at which a process is in no call for long, so launches nothing.

    Pauses between calls of at least `PAUSE_NS` count as far as they lie outside the marked steps; in a process without
    steps, outside ranges of `MODEL`. Anywhere else outside ranges of `MODEL` a pause counts only if it also lasts
    `PAUSE_FACTOR` times as long as the median pause of the thread with most calls.

    `calls`: the moments in calls of each thread that makes some.
    """
    if not calls:
        return NOTHING
    pauses = ALL_TIME
    for of_thread in calls:
        pauses = intersection(pauses, _pauses(of_thread))
    # How long the host paused before the first call and after the last is not known.
    long = pauses[(pauses[:, 1] - pauses[:, 0] >= PAUSE_NS) & (pauses[:, 0] > FIRST) & (pauses[:, 1] < LAST)]
    model = NOTHING if ranges is None else _moments(ranges, owner, MODEL)
    steps = marks.steps.get(owner)
    free = difference(ALL_TIME, model) if steps is None else complement(union(steps.starts, steps.ends))
    found = intersection(long, free)
    if len(difference(long, together([free, model]))):
        busiest = max(calls, key=len)
        usual = np.median(busiest[1:, 0] - busiest[:-1, 1]) if len(busiest) > 1 else np.inf
        outstanding = long[long[:, 1] - long[:, 0] >= PAUSE_FACTOR * usual]
        found = together([found, difference(outstanding, model)])
    return found


def _pauses(calls: Intervals) -> Intervals:
    """Return the pauses of a thread of at least `PAUSE_NS`, and the time before its first call and after its last."""
    before = np.flatnonzero(calls[1:, 0] - calls[:-1, 1] >= PAUSE_NS)
    starts = np.concatenate(([FIRST], calls[before, 1], calls[-1:, 1]))
    ends = np.concatenate((calls[:1, 0], calls[before + 1, 0], [LAST]))
    return np.stack((starts, ends)).T


def _longest(moments: dict[str, Intervals], gaps: Intervals, more_than: int = 0) -> str | None:
    """Return the name of the set that has most time in some gaps; None if none has more time than `more_than`."""
    longest, most = None, more_than
    of_gaps = Measure(gaps)
    for name, own in moments.items():
        length = int(CommonMeasure(of_gaps, own).between([FIRST], [LAST])[0])
        if length > most:
            longest, most = name, length
    return longest


def _length(moments: Intervals) -> int:
    """Return the length of a set."""
    return int((moments[:, 1] - moments[:, 0]).sum())


def _moments(events: Events, owner: Place, named: re.Pattern[str] | None = None) -> Intervals:
    """Return the moments of the events of a process, or of those with such a name."""
    if named is None:
        return _union_of(events, owner, range(len(events.groups)))
    names = events.values("name")
    return _union_of(events, owner, [code for code, (_, name) in enumerate(names) if named.fullmatch(name)])


def _union_of(events: Events, owner: Place, codes: Collection[int]) -> Intervals:
    """Return the moments of the events of a process that are of some groups."""
    part = events.at(owner)
    start, duration = events.arrays["start"][part], events.arrays["duration"][part]
    if not len(codes):
        return NOTHING
    chosen = set(codes)
    is_chosen = events.mask([code in chosen for code in range(len(events.groups))], part)
    if not is_chosen.all():
        own = np.flatnonzero(is_chosen)
        start, duration = start.take(own), duration.take(own)
    start = start.astype(np.int64)
    return union(start, start + duration)

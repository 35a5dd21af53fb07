"""What the host does in each moment: which kind of call it is in, or, between calls, whether it loads data."""

import re
from collections.abc import Callable, Collection
from functools import cached_property

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
        calls = _moments(api, owner)
        self._data = NOTHING if ranges is None else difference(_moments(ranges, owner, DATA), calls)
        self._elsewhere = difference(_long_pauses(calls, ranges, marks, owner), self._data)

    def thread(self, thread: int | None) -> "HostThread":
        """Return what one thread does."""
        return self._of_calls(lambda caller: caller == thread)

    @cached_property
    def any_thread(self) -> "HostThread":
        """What the process does, whichever of its threads."""
        return self._of_calls(lambda caller: True)

    def _of_calls(self, counts: Counts) -> "HostThread":
        """Return what the threads do that count."""
        calls = self._calls(counts, set(HostActivity))
        covered = NOTHING
        moments: dict[HostActivity, Intervals] = {}
        # Of nested calls, as a launch that loads a library, the inner one counts. Launching calls are by far the most,
        # so they are what remains.
        for activity in (HostActivity.LOADING_CODE, HostActivity.ALLOCATING, HostActivity.WAITING, HostActivity.OTHER):
            own = self._calls(counts, {activity})
            if activity is HostActivity.LOADING_CODE:
                own = together([own, intersection(self._loading, calls)])
            moments[activity] = difference(own, covered)
            covered = together([covered, own])
        return HostThread(self, counts, calls, moments, self._data, self._elsewhere)

    def _calls(self, counts: Counts, activities: set[HostActivity]) -> Intervals:
        """Return the moments in calls of some kinds by the threads that count."""
        codes = [code for code, _, activity in self._counted(counts) if activity in activities]
        return _union_of(self._api, self._owner, codes)

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
        """Return the function in which the threads that count spend most time of some gaps; None if in none.

        Of launching calls, which are many, it is the one with most time in all. Code that a launch loads is named
        `FIRST_LAUNCH`, whatever the function.
        """
        of_function: dict[str, list[int]] = {}
        for code, function, its_activity in self._counted(counts):
            if its_activity is activity:
                of_function.setdefault(function, []).append(code)
        if activity is HostActivity.LAUNCHING:
            gaps = ALL_TIME
        loaded = {FIRST_LAUNCH: self._loading} if activity is HostActivity.LOADING_CODE else {}
        moments = {name: _union_of(self._api, self._owner, codes) for name, codes in of_function.items()} | loaded
        return _longest(moments, gaps)

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
        return _longest(moments, gaps, at_least=_length(gaps) // 2)


class HostThread:
    """The moments of one thread, or of all threads of a process, by what the host does in them.

    `calls`: in any call. `moments`: in calls of each kind but launching, disjoint. `data`, `elsewhere`: in no call of
    the process, while it loads data, or for so long that it is busy with something else than launching.
    """

    def __init__(
        self,
        host: Host,
        counts: Counts,
        calls: Intervals,
        moments: dict[HostActivity, Intervals],
        data: Intervals,
        elsewhere: Intervals,
    ) -> None:
        self._host, self._counts = host, counts
        self.calls = calls
        self.moments = moments
        self.data = data
        self.elsewhere = elsewhere

    def function_in(self, activity: HostActivity, gaps: Intervals) -> str | None:
        """Return the function of an activity with most time in some gaps."""
        return self._host.function_in(self._counts, activity, gaps)

    def library_function_in(self, gaps: Intervals) -> str | None:
        """Return the function of the operating system or of MPI with most time in some gaps outside of all calls."""
        return self._host.library_function_in(self._counts, intersection(gaps, self.elsewhere))


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
        others = lasting[:: len(lasting) // SAMPLE + 1][repeated[:: len(lasting) // SAMPLE + 1]]
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


def _long_pauses(calls: Intervals, ranges: Events | None, marks: Marks, owner: Place) -> Intervals:
    """Return the moments at which a process is in no call for long, so launches nothing.

    These are pauses of at least `PAUSE_NS` between calls as far as they lie outside the marked steps, or anywhere in a
    process without steps; and outside ranges of `MODEL` all of a pause that is also `PAUSE_FACTOR` times as long as the
    median.
    """
    if not len(calls):
        return NOTHING
    pauses = complement(calls)[1:-1]  # how long the host paused before the first call and after the last is not known
    lengths = pauses[:, 1] - pauses[:, 0]
    outstanding = pauses[lengths >= max(PAUSE_NS, PAUSE_FACTOR * (np.median(lengths) if len(lengths) else 0.0))]
    model = NOTHING if ranges is None else _moments(ranges, owner, MODEL)
    steps = marks.steps.get(owner)
    free = difference(ALL_TIME, model) if steps is None else complement(union(steps.starts, steps.ends))
    long = pauses[lengths >= PAUSE_NS]
    return together([intersection(long, free), difference(outstanding, model)])


def _longest(moments: dict[str, Intervals], gaps: Intervals, at_least: int = 0) -> str | None:
    """Return the name of the set that has most time in some gaps; None if none has more than `at_least`."""
    longest, most = None, at_least
    for name, own in moments.items():
        length = int(CommonMeasure(gaps, own).between([FIRST], [LAST])[0])
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
    chosen = set(codes)
    is_chosen = events.mask([code in chosen for code in range(len(events.groups))], part)
    if not is_chosen.all():
        own = np.flatnonzero(is_chosen)
        start, duration = start.take(own), duration.take(own)
    start = start.astype(np.int64)
    return union(start, start + duration)

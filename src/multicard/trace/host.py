"""Find out what the host does in each moment: in which kind of call it is or, outside of calls, if it loads data."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from multicard.trace.api_calls import HostActivity, host_activity
from multicard.trace.code_loading import FIRST_LAUNCH
from multicard.trace.events import Events, Owner
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
    length,
    together,
    union,
)
from multicard.trace.model import Integers
from multicard.trace.steps import Marks

# Whole names of ranges in which the program waits for the next batch: multicard's phase, and the range that PyTorch's
# DataLoader marks (torch/utils/data/dataloader.py).
DATA = re.compile(r"data|enumerate\(DataLoader\).*", re.IGNORECASE)
# Whole names of ranges in which the program runs the model. A long pause inside a step does not count there, because
# some operators launch nothing for a while.
MODEL = re.compile(
    r"\W*(?:forward|backward|optimizer)\W*|aten::.*|Optimizer\..*|DistributedDataParallel\.forward", re.IGNORECASE
)

# A pause between calls is long if it lasts at least `PAUSE_NS` nanoseconds: eager launches follow each other within
# microseconds. Inside steps, it must also last at least `PAUSE_FACTOR` times the median pause, because a profiler may
# slow down the program's operators, and so lengthen all pauses between their launches.
PAUSE_NS = 1_000_000
PAUSE_FACTOR = 100

# Where calls of several kinds overlap, only the first of these kinds counts, so that the moments of all kinds are
# disjoint. This is usually the kind of the inner call, such as the load of a library within a launch. Allocating comes
# before waiting because a call that frees memory may wait for the device: without the call there would be no such wait.
# Launching calls are by far the most numerous, so their moments are not computed: they are the moments in calls of none
# of these kinds.
_INNERMOST_FIRST = (HostActivity.LOADING_CODE, HostActivity.ALLOCATING, HostActivity.WAITING, HostActivity.OTHER)
# Takes the place of the activity for calls of other processes, for calls of threads that do not count, and for rows
# that repeat a call with its backtrace.
_NOT_COUNTED = -1

# Returns True for each thread whose calls count.
IsCounted = Callable[[int | None], bool]


class CallGroup(NamedTuple):
    """The calls of one function by one thread: the code of their group, and what the host does in them."""

    code: int
    function: str
    activity: HostActivity


class Host:
    """What one process does on the host, made from its calls, ranges and steps."""

    def __init__(
        self,
        api: Events,
        ranges: Events | None,
        marks: Marks,
        owner: Owner,
        loading: Intervals = NOTHING,
        host_calls: Events | None = None,
    ) -> None:
        """Take the events of all processes.

        `owner`: the trace and the process that this is about. `loading`: the moments of launching calls that load code,
        as `code_loading.loading_launches` returns them. `host_calls`: calls of the operating system and of MPI; None if
        these were not recorded.
        """
        self._api = api
        self._ranges = ranges
        self._marks = marks
        self._owner = owner
        self._loading = loading
        self._host_calls = host_calls
        self._threads: dict[int | None, HostThread] = {}
        for trace, process, thread in api.group_fields("process", "thread"):
            if (trace, process) == owner and thread not in self._threads:
                self._threads[thread] = self._host_thread(_is(thread), FIRST, LAST)
        self._outside: dict[frozenset[int | None], tuple[Intervals, Intervals]] = {}

    def thread(self, thread: int | None) -> "HostThread":
        """Return what one thread does. It must be a thread that makes calls."""
        return self._threads[thread]

    def any_thread(self, first: int, last: int) -> "HostThread":
        """Return what all threads of the process together do between two moments."""
        return self._host_thread(lambda thread: True, first, last)

    def outside(self, threads: Iterable[int | None] | None = None) -> tuple[Intervals, Intervals]:
        """Return two sets of moments in which none of some threads is in a call.

        In the first set, the process loads data. The second set has the long pauses (`_long_pauses`) in which it does
        not load data.

        `threads`: those that launch onto a device. The calls of other threads, such as pinning memory or querying
        events, do not matter, because they do not keep these threads from launching. By default, all threads that make
        calls are meant.
        """
        chosen = frozenset(self._threads if threads is None else threads)
        if chosen not in self._outside:
            calls_of_threads = [self._threads[thread].calls for thread in chosen]
            calls_of_threads = [calls for calls in calls_of_threads if len(calls)]
            data = NOTHING if self._ranges is None else _named_moments(self._ranges, self._owner, DATA)
            for calls in calls_of_threads:
                data = difference(data, calls)
            pauses = _long_pauses(calls_of_threads, self._ranges, self._marks, self._owner)
            self._outside[chosen] = (data, difference(pauses, data))
        return self._outside[chosen]

    def function_in(self, is_counted: IsCounted, activity: HostActivity, gaps: Intervals) -> str | None:
        """Return the function with this activity in which the threads that count spend most time within the gaps.

        Launching calls that load code count as calls of a function `FIRST_LAUNCH` with the activity `LOADING_CODE`.
        None if the threads call no function with this activity, or none within the gaps.

        The gaps are not examined in two cases. If the threads call only one function with this activity, this function
        is returned. If the activity is launching, for which there are very many calls, the function that the threads
        call most often in the whole capture is returned.
        """
        if activity is HostActivity.LAUNCHING:
            return self._most_called_launching(is_counted)
        codes_of_function: dict[str, list[int]] = {}
        for group in self._call_groups(is_counted):
            if group.activity is activity:
                codes_of_function.setdefault(group.function, []).append(group.code)
        loads_by_launch = activity is HostActivity.LOADING_CODE and len(self._loading) > 0
        if len(codes_of_function) == 1 and not loads_by_launch:
            return next(iter(codes_of_function))
        moments_of_function: dict[str, Intervals] = {}
        for function, codes in codes_of_function.items():
            moments_of_function[function] = _moments(self._api, self._owner, codes)
        if loads_by_launch:
            moments_of_function[FIRST_LAUNCH] = self._loading
        return _longest(moments_of_function, gaps)

    def library_function_in(self, is_counted: IsCounted, gaps: Intervals) -> str | None:
        """Return the function of the operating system or of MPI in which the threads that count spend most of the gaps.

        None if no such calls were recorded, or if no function takes more than half of the gaps' time.
        """
        if self._host_calls is None:
            return None
        codes_of_function: dict[str, list[int]] = {}
        groups = self._host_calls.group_fields("process", "name", "thread")
        for code, (trace, process, function, thread) in enumerate(groups):
            if (trace, process) == self._owner and is_counted(thread):
                codes_of_function.setdefault(function, []).append(code)
        moments_of_function: dict[str, Intervals] = {}
        for function, codes in codes_of_function.items():
            moments_of_function[function] = _moments(self._host_calls, self._owner, codes)
        return _longest(moments_of_function, gaps, more_than=length(gaps) // 2)

    def _host_thread(self, is_counted: IsCounted, first: int, last: int) -> "HostThread":
        """Return what the threads that count do, by those of their calls that overlap the time from first to last."""
        activity_of_code = np.full(len(self._api.groups), _NOT_COUNTED, np.int8)
        for group in self._call_groups(is_counted):
            activity_of_code[group.code] = group.activity
        start = self._api.array_at("start", self._owner)
        duration = self._api.array_at("duration", self._owner)
        activity = activity_of_code.take(self._api.codes_at(self._owner))
        is_chosen = activity != _NOT_COUNTED
        if (first, last) != (FIRST, LAST):
            ends_after_first = start.astype(np.int64) + duration > first
            is_chosen &= (start < last) & ends_after_first
        if not is_chosen.all():
            chosen = np.flatnonzero(is_chosen)
            start = start.take(chosen)
            duration = duration.take(chosen)
            activity = activity.take(chosen)
        start = start.astype(np.int64)
        end = start + duration
        calls = union(start, end)
        # If there are fewer intervals than calls, some calls overlap, or they only touch or take no time.
        may_overlap = len(calls) < len(start)

        loading = intersection(self._loading, calls)
        moments: dict[HostActivity, Intervals] = {}
        moments_of_inner = NOTHING
        for call_activity in _INNERMOST_FIRST:
            chosen = np.flatnonzero(activity == call_activity)
            in_calls = union(start.take(chosen), end.take(chosen))
            if call_activity is HostActivity.LOADING_CODE and len(loading):
                in_calls = together([in_calls, loading])
            if may_overlap or len(loading):
                moments[call_activity] = difference(in_calls, moments_of_inner)
                moments_of_inner = together([moments_of_inner, in_calls])
            else:
                moments[call_activity] = in_calls
        return HostThread(self, is_counted, calls, moments)

    def _call_groups(self, is_counted: IsCounted) -> Iterator[CallGroup]:
        """Yield the groups of calls by the threads that count, without rows that repeat a call with its backtrace."""
        groups = self._api.group_fields("process", "api", "name", "thread")
        for code, (trace, process, api, function, thread) in enumerate(groups):
            if (trace, process) == self._owner and api != "backtrace" and is_counted(thread):
                yield CallGroup(code, function, host_activity(function))

    def _most_called_launching(self, is_counted: IsCounted) -> str | None:
        """Return the launching function that the threads that count call most often; None if they call none.

        If several are called equally often, it is the first of them by name.
        """
        calls_of_function: dict[str, int] = {}
        for group in self._call_groups(is_counted):
            if group.activity is HostActivity.LAUNCHING:
                call_count = int(self._calls_of_code[group.code])
                calls_of_function[group.function] = calls_of_function.get(group.function, 0) + call_count
        return max(sorted(calls_of_function), key=calls_of_function.__getitem__, default=None)

    @cached_property
    def _calls_of_code(self) -> Integers:
        """Number of calls of the process in each group."""
        return np.bincount(self._api.codes_at(self._owner), minlength=len(self._api.groups))


class HostThread:
    """The moments of one thread, or of all threads of a process, by what the host does in them; made by `Host`.

    `calls`: the moments in any call. `moments`: for each kind of call except launching, the moments in calls of this
    kind. These sets are disjoint. All other moments of `calls` are in launching calls.
    """

    def __init__(
        self, host: Host, is_counted: IsCounted, calls: Intervals, moments: dict[HostActivity, Intervals]
    ) -> None:
        self._host = host
        self._is_counted = is_counted
        self.calls = calls
        self.moments = moments

    def function_in(self, activity: HostActivity, gaps: Intervals) -> str | None:
        """Return the function with this activity that takes most time within the gaps, as `Host.function_in` does."""
        return self._host.function_in(self._is_counted, activity, gaps)

    def library_function_in(self, gaps: Intervals) -> str | None:
        """Return the function of the operating system or of MPI that takes most of the gaps, or None.

        It is that of `Host.library_function_in`.
        """
        return self._host.library_function_in(self._is_counted, gaps)


def _long_pauses(calls: list[Intervals], ranges: Events | None, marks: Marks, owner: Owner) -> Intervals:
    """Return the moments in long pauses of a process, in which it is in no call and so launches nothing.

    A pause is long if it lasts at least `PAUSE_NS`. Which parts of a long pause count depends on where they lie:

    - Outside the process's steps, every part counts.
    - Inside a step, but outside ranges of `MODEL`, a part counts if the whole pause also lasts at least `PAUSE_FACTOR`
      times the median pause of the thread with most calls.
    - Inside a step and inside a range of `MODEL`, no part counts.

    In a process without steps, all parts outside ranges of `MODEL` count, and no others. The time before the first call
    and after the last one never counts.

    `calls`: for each of the threads that matter, the moments in its calls, which are not empty.
    """
    if not calls:
        return NOTHING
    pauses = ALL_TIME
    for calls_of_thread in calls:
        pauses = intersection(pauses, _pauses(calls_of_thread))
    starts, ends = pauses.T
    # It is unknown how long the host paused before the first call and after the last one.
    is_whole = (starts > FIRST) & (ends < LAST)
    is_long = ends - starts >= PAUSE_NS
    long_pauses = pauses[is_long & is_whole]

    model = NOTHING if ranges is None else _named_moments(ranges, owner, MODEL)
    steps = marks.steps.get(owner)
    if steps is None:
        outside_steps = difference(ALL_TIME, model)
    else:
        outside_steps = complement(union(steps.starts, steps.ends))
    counted = intersection(long_pauses, outside_steps)
    doubtful = difference(long_pauses, together([outside_steps, model]))
    if not len(doubtful):
        return counted

    # Threads are in the order of the file, which means nothing. So of threads with equally many calls, the one that
    # began to call last counts.
    busiest = max(calls, key=lambda moments: (len(moments), int(moments[0, 0])))
    pauses_of_busiest = busiest[1:, 0] - busiest[:-1, 1]
    usual_pause = np.median(pauses_of_busiest) if len(pauses_of_busiest) else np.inf
    long_starts, long_ends = long_pauses.T
    is_outstanding = long_ends - long_starts >= PAUSE_FACTOR * usual_pause
    outstanding = long_pauses[is_outstanding]
    return together([counted, difference(outstanding, model)])


def _pauses(calls: Intervals) -> Intervals:
    """Return the pauses of a thread of at least `PAUSE_NS`, and the time before its first call and after its last call.

    `calls`: the moments in calls of the thread, which are not empty.

    Between the calls from 0 to 1 ms and from 3 to 4 ms there is a pause of 2 ms:

    >>> pauses = _pauses(union([0, 3_000_000], [1_000_000, 4_000_000]))
    >>> pauses.tolist() == [[FIRST, 0], [1_000_000, 3_000_000], [4_000_000, LAST]]
    True
    """
    starts, ends = calls.T
    pause_lengths = starts[1:] - ends[:-1]
    before_pause = np.flatnonzero(pause_lengths >= PAUSE_NS)
    pause_starts = np.concatenate(([FIRST], ends[before_pause], ends[-1:]))
    pause_ends = np.concatenate((starts[:1], starts[before_pause + 1], [LAST]))
    return np.stack((pause_starts, pause_ends)).T


def _longest(moments: dict[str, Intervals], gaps: Intervals, more_than: int = 0) -> str | None:
    """Return the name of the set that has most time within the gaps; the first one by name if several have most.

    None if no set has more than `more_than` nanoseconds within the gaps.
    """
    longest = None
    longest_ns = more_than
    measured_gaps = Measure(gaps)
    for name, in_calls in sorted(moments.items()):
        common = CommonMeasure(measured_gaps, in_calls)
        common_ns = int(common.between([FIRST], [LAST])[0])
        if common_ns > longest_ns:
            longest = name
            longest_ns = common_ns
    return longest


def _named_moments(events: Events, owner: Owner, pattern: re.Pattern[str]) -> Intervals:
    """Return the moments of the events of a process whose whole name fits a pattern."""
    codes = [code for code, name in enumerate(events.group_field("name")) if pattern.fullmatch(name)]
    return _moments(events, owner, codes)


def _moments(events: Events, owner: Owner, codes: Collection[int]) -> Intervals:
    """Return the moments of the events of a process that are of some groups."""
    if not len(codes):
        return NOTHING
    start = events.array_at("start", owner)
    duration = events.array_at("duration", owner)
    chosen_codes = set(codes)
    is_chosen_code = [code in chosen_codes for code in range(len(events.groups))]
    is_chosen = events.mask(is_chosen_code, events.slice_of(owner))
    if not is_chosen.all():
        chosen = np.flatnonzero(is_chosen)
        start = start.take(chosen)
        duration = duration.take(chosen)
    start = start.astype(np.int64)
    return union(start, start + duration)


def _is(thread: int | None) -> IsCounted:
    """Return a function that is True for one thread."""
    return lambda caller: caller == thread

"""When the host is busy with something other than launching work, such as loading data."""

import re

import numpy as np

from multicard.trace.collect import Events, Place
from multicard.trace.intervals import NOTHING, Intervals, complement, intersection, union
from multicard.trace.steps import Marks

# Waiting for the next batch: multicard's phase, and the range of PyTorch's DataLoader (torch/utils/data/dataloader.py).
DATA = re.compile(r"data|enumerate\(DataLoader\).*")
# Running the model, though some operators launch nothing for a while.
MODEL = re.compile(r"\W*(?:forward|backward|optimizer)\W*|aten::.*|Optimizer\..*|DistributedDataParallel\.forward")

# Eager launches follow each other within microseconds. From 1 ms without any call nothing is being launched where the
# host is outside its steps or loads data. Elsewhere a pause must stand out from those between the program's own
# operators, which a profiler may slow down.
PAUSE_NS = 1_000_000
PAUSE_FACTOR = 100  # times the median pause


def elsewhere(api: Events, ranges: Events | None, marks: Marks, owner: Place) -> Intervals:
    """Moments at which a process has no CUDA call in progress and no launches under way.

    These are pauses of at least `PAUSE_NS` between calls as far as they lie outside the marked steps or in a range of
    `DATA`, and outside ranges of `MODEL` all of a pause that is also `PAUSE_FACTOR` times as long as the median.

    `api`: calls with process, start and duration; `ranges`: ranges with process, name, start and duration; `owner`:
    trace and process.
    """
    calls = _moments(api, owner)
    if not len(calls):
        return NOTHING
    pauses = complement(calls)
    lengths = pauses[:, 1] - pauses[:, 0]
    long = lengths >= max(PAUSE_NS, PAUSE_FACTOR * np.median(lengths[1:-1] if len(calls) > 1 else np.inf))
    long[[0, -1]] = False  # how long the host paused before the first call and after the last is not known
    steps = marks.steps.get(owner)
    free = NOTHING if steps is None else complement(union(steps.starts, steps.ends))
    away = pauses[long]
    if ranges is not None:
        loading, running = (_moments(ranges, owner, what) for what in (DATA, MODEL))
        free = union(*np.concatenate((free, loading)).T)
        away = intersection(away, complement(running))
    return union(*np.concatenate((intersection(pauses[lengths >= PAUSE_NS], free), away)).T)


def _moments(events: Events, owner: Place, named: re.Pattern[str] | None = None) -> Intervals:
    """Moments of the events of a process, or of those with such a name."""
    start, duration = (events.arrays[name][events.at(owner)] for name in ("start", "duration"))
    if named is not None:
        names = [bool(named.fullmatch(name)) for _, name in events.values("name")]
        own = np.flatnonzero(events.mask(names, events.at(owner)))
        start, duration = start.take(own), duration.take(own)
    start = start.astype(np.int64)
    return union(start, start + duration)

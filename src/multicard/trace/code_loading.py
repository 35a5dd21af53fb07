"""Find the launching calls that load the code of a kernel before they launch it."""

import numpy as np

from multicard.trace.events import Events, Location, Owner
from multicard.trace.intervals import NOTHING, Intervals, together, union
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers

# A launching call may load the code of its kernel first, as CUDA does by default since 12.2 ("lazy loading", CUDA C++
# Programming Guide). Such a call takes from a tenth of a millisecond to seconds, and other launching calls take
# microseconds. So it must last at least `LOADING_LAUNCH_NS` nanoseconds, and at least `LOADING_LAUNCH_FACTOR` times the
# median of other launching calls that were recorded and launch a single kernel. The median is taken over a sample of at
# most `USUAL_LAUNCH_SAMPLE` kernels.
LOADING_LAUNCH_NS = 100_000
LOADING_LAUNCH_FACTOR = 10
# The name that stands for the function of such a call.
FIRST_LAUNCH = "first launch of a kernel"
USUAL_LAUNCH_SAMPLE = 10_000


def loading_launches(kernels: Events | None, owner: Owner) -> Intervals:
    """Return the moments of the launching calls of a process that load the code of a kernel.

    Such a call is the first launch, on its device, of a kernel of that name, and it takes far longer than launches
    usually do (`LOADING_LAUNCH_NS`). `kernels`: with `call` and `returned`; None if kernels were not recorded.
    """
    if kernels is None:
        return NOTHING
    return together([_loading_launches_of_device(kernels, location) for location in kernels.locations_of(owner)])


def _loading_launches_of_device(kernels: Events, location: Location) -> Intervals:
    """Return the moments of the launching calls that load code, for the kernels of one device."""
    call = kernels.array_at("call", location)
    returned = kernels.array_at("returned", location)
    # Both times of a call that was not recorded are `UNKNOWN`, so its length is 0.
    call_length = np.where(returned > call, returned - call, 0)
    # The calls whose lengths show how long a launch usually takes.
    is_usual = call != UNKNOWN
    if "by_graph" in kernels.arrays:
        # A call that replays a graph launches all of its kernels, so it may take long without loading code.
        by_graph = kernels.array_at("by_graph", location)
        call_length[by_graph] = 0
        is_usual &= ~by_graph
    long_launches = np.flatnonzero(call_length >= LOADING_LAUNCH_NS)
    if not len(long_launches):
        return NOTHING
    first_launches = _first_of_name(kernels, location, long_launches)
    is_usual[first_launches] = False
    usual_launches = np.flatnonzero(is_usual)
    sample = usual_launches[:: len(usual_launches) // USUAL_LAUNCH_SAMPLE + 1]
    usual_length = np.median(call_length.take(sample)) if len(sample) else 0
    is_outstanding = call_length.take(first_launches) >= LOADING_LAUNCH_FACTOR * usual_length
    loading_launches = first_launches[is_outstanding]
    return union(call.take(loading_launches), returned.take(loading_launches))


def _first_of_name(kernels: Events, location: Location, candidates: Integers) -> Integers:
    """Return those candidates that were launched first among all kernels of the device with the same name.

    `candidates`: positions of kernels among the kernels of the device.
    """
    call = kernels.array_at("call", location)
    name_of_code = kernels.group_field("name")
    candidate_codes = kernels.codes_at(location).take(candidates)
    candidate_names = [name_of_code[code] for code in candidate_codes.tolist()]
    first_call_of_name: dict[str, int] = {}
    for name in set(candidate_names):
        is_code_of_name = [other == name for other in name_of_code]
        has_name = kernels.mask(is_code_of_name, kernels.slice_of(location))
        first_call_of_name[name] = int(call[has_name].min())
    first_calls = np.array([first_call_of_name[name] for name in candidate_names], np.int64)
    is_first = call.take(candidates) == first_calls
    return candidates[is_first]

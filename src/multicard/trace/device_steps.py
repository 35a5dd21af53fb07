"""When a device ran the steps of its process, and which of its work was launched before the first of them.

All functions are about events whose launching calls were joined (`launches.join_calls`), and about a device whose
process has steps.
"""

import numpy as np

from multicard.trace.device_events import DeviceEvents, Mask
from multicard.trace.events import Events, Location
from multicard.trace.launches import NO_THREAD, UNKNOWN, calling_threads
from multicard.trace.steps import LONG_AGO, Marks, Steps, launched_before, steps_on_device


def steps_of_device(on_device: DeviceEvents, api: Events | None, marks: Marks, location: Location) -> Steps:
    """Return the steps of a device, as `steps_on_device` computes them from the work that the steps wait for.

    If too few launching calls were recorded, they are the steps of the host. `api`: the calls; None if these were not
    recorded.
    """
    is_awaited = _on_streams_of_steps(on_device, api, marks, location)
    awaited = np.flatnonzero(is_awaited)
    call = on_device.array_at("call", location).take(awaited)
    start = on_device.array_at("start", location).take(awaited)
    duration = on_device.array_at("duration", location).take(awaited)

    is_before_steps = launched_before_steps(on_device, marks, location)
    if is_before_steps is not None:
        # The first step waits for this work. `LONG_AGO` marks it as launched before the steps, so that it does not
        # count against the share of launching calls that must be recorded.
        call = np.where(is_before_steps.take(awaited), LONG_AGO, call)
    steps_of_host = marks.steps[location[:2]]
    end = start + duration
    return steps_on_device(steps_of_host, call, end)


def launched_before_steps(on_device: DeviceEvents, marks: Marks, location: Location) -> Mask | None:
    """Return the mask of the events of a device that `launched_before` finds.

    They were launched before the first step, though their launching calls were not recorded. None if all launching
    calls were recorded, because then the times of the calls show what was launched before the first step.
    """
    call = on_device.array_at("call", location)
    # `UNKNOWN` is later than the start of any call.
    if call.max(initial=0) != UNKNOWN:
        return None
    steps_of_host = marks.steps[location[:2]]
    first_step = int(steps_of_host.starts[0]), int(steps_of_host.ends[0])
    start = on_device.array_at("start", location)
    return launched_before(first_step, call, start, on_device.stream_numbers(location))


def _on_streams_of_steps(on_device: DeviceEvents, api: Events | None, marks: Marks, location: Location) -> Mask:
    """Return the mask of the events of a device that its steps wait for.

    Steps wait for all events on those streams on which a thread that marks steps launched kernels. Such a thread
    launches the forward pass and the optimizer. Other threads launch the backward pass, but onto the same streams. Data
    loaders that launch from threads of their own, such as DALI, use other streams, so no step waits for them.

    If no thread that marks steps launched kernels on the device, the steps wait for all streams of the device. This is
    so for `DataParallel`, which runs the replica of each device in a thread of its own.
    """
    kernels = on_device.of_kind.get("kernels")
    streams_of_steps: set[int | None] = set()
    if kernels is not None and api is not None:
        streams_of_steps = _streams_of_marking_threads(kernels, api, marks, location)
    waits_for_all_streams = not streams_of_steps
    masks = []
    for events in on_device.of_kind.values():
        streams = events.group_field("stream")
        is_awaited = [waits_for_all_streams or stream in streams_of_steps for stream in streams]
        events_of_location = events.slice_of(location)
        masks.append(events.mask(is_awaited, events_of_location))
    return np.concatenate(masks)


def _streams_of_marking_threads(kernels: Events, api: Events, marks: Marks, location: Location) -> set[int | None]:
    """Return the streams of a device on which threads that mark steps launched kernels; they may be none."""
    callers = calling_threads(api)
    # True at the number of each thread that marks steps. Kernels whose thread is unknown have the number `NO_THREAD`,
    # which is the last index and stays False.
    marks_steps = np.zeros(NO_THREAD + 1, bool)
    marks_steps[: len(callers)] = [caller in marks.threads for caller in callers]

    thread_of_kernel = kernels.array_at("thread", location)
    is_by_marking_thread = marks_steps.take(thread_of_kernel)
    codes = kernels.codes_at(location)[is_by_marking_thread]
    kernels_of_code = np.bincount(codes)
    codes_with_kernels = np.flatnonzero(kernels_of_code).tolist()
    streams = kernels.group_field("stream")
    return {streams[code] for code in codes_with_kernels}

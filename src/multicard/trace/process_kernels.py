"""The kernels of each process of a capture, on all of its devices, in the order of their starts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from multicard.trace.captured_events import CapturedEvents
from multicard.trace.events import Events, Owner
from multicard.trace.kernel_classes import CLASSES
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers
from multicard.trace.steps import LONG_AGO


@dataclass(frozen=True)
class ProcessKernels:
    """Kernels of a process in order of their starts: arrays of one length, times in nanoseconds.

    `device`: index into `devices`; `kernel_class`: index into `CLASSES`; `call`: when the launching call began, or
    `UNKNOWN`.
    """

    devices: list[int | None]
    device: Integers
    kernel_class: Integers
    start: Integers
    end: Integers
    call: Integers

    @property
    def launched(self) -> Integers:
        """When each kernel was launched, as far as its call was recorded.

        Before the first recorded call it is `LONG_AGO`, after it the start of the kernel.
        """
        is_recorded = self.call != UNKNOWN
        launched = np.where(is_recorded, self.call, self.start)
        if is_recorded.any():
            launched[: is_recorded.argmax()] = LONG_AGO
        return launched


def process_kernels(capture: CapturedEvents, kernels: Events) -> Mapping[Owner, ProcessKernels]:
    """Return the kernels of each process that has some, in the order of the processes' texts."""
    call = np.full(len(kernels.code), UNKNOWN)
    if capture.linked:
        call = kernels.arrays["call"]
    class_of_code = np.array([CLASSES.index(name) for name in kernels.group_field("class")], np.int32)
    by_process: dict[Owner, ProcessKernels] = {}
    owners = {location[:2] for location in kernels.locations}
    for owner in sorted(owners, key=str):
        locations = sorted(kernels.locations_of(owner), key=str)
        positions_by_device = [kernels.positions(location) for location in locations]
        kernel_counts = [len(positions) for positions in positions_by_device]
        positions = np.concatenate(positions_by_device)
        device = np.repeat(np.arange(len(locations)), kernel_counts)

        order = np.argsort(kernels.arrays["start"].take(positions), kind="stable")
        positions = positions.take(order)
        by_process[owner] = ProcessKernels(
            devices=[device_number for _, _, device_number in locations],
            device=device.take(order),
            kernel_class=class_of_code.take(kernels.codes(positions)),
            start=kernels.number("start", positions),
            end=kernels.ends(positions),
            call=call.take(positions),
        )
    return by_process

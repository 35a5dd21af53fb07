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

    `devices` is no such array, but lists the numbers of the process's devices. `device`: index into `devices`.
    `kernel_class`: index into `CLASSES`. `call`: when the call began that launched the kernel, `UNKNOWN` if it was not
    recorded.
    """

    devices: list[int | None]
    device: Integers
    kernel_class: Integers
    start: Integers
    end: Integers
    call: Integers

    @property
    def launched(self) -> Integers:
        """When the launching call of each kernel began, in nanoseconds; an estimate if the call was not recorded.

        Kernels that started before the first kernel whose call was recorded were launched before the recording of calls
        began, so the estimate for them is `LONG_AGO`, which is before all times. For later kernels it is the start of
        the kernel. If no kernel's call was recorded, it is the start of the kernel for all of them.
        """
        is_recorded = self.call != UNKNOWN
        launched = np.where(is_recorded, self.call, self.start)
        if is_recorded.any():
            launched[: is_recorded.argmax()] = LONG_AGO
        return launched


def process_kernels(capture: CapturedEvents, kernels: Events) -> Mapping[Owner, ProcessKernels]:
    """Return the kernels of each process that ran any; the processes are sorted by their `str`."""
    call = np.full(len(kernels.code), UNKNOWN)
    # If the capture is linked, kernels have the array `call`.
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

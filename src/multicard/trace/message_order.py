"""Match communication kernels with messages by order, where nothing else shows which message a kernel carries."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from multicard.trace.events import Events, Owner
from multicard.trace.model import Integers

# Stands in for the position of a kernel's message if it is not known which message the kernel carries.
NO_MESSAGE = -1


@dataclass(frozen=True)
class ProcessMessages:
    """Communication kernels of one process, and messages of the same process that are to be matched with them.

    `kernels` and `messages` hold those of all processes. `kernel_positions` and `message_positions` are the positions
    in these of the kernels and messages that are to be matched.
    """

    owner: Owner
    kernels: Events
    messages: Events
    kernel_positions: Integers
    message_positions: Integers

    def kernel_number(self, name: str) -> Integers:
        """Return the number `name`, such as "start", of each kernel at `kernel_positions`."""
        return self.kernels.number(name, self.kernel_positions)

    def message_number(self, name: str) -> Integers:
        """Return the number `name`, such as "start", of each message at `message_positions`."""
        return self.messages.number(name, self.message_positions)


class _Stream(NamedTuple):
    """A stream of a device; `number` is None if the stream of the kernels was not recorded."""

    trace: int
    device: int | None
    number: int | None


class _KernelGroup(NamedTuple):
    """A group of kernels: its code, and what its kernels have in common.

    `collective` is None if the name of the kernels does not contain it.
    """

    code: int
    stream: _Stream
    collective: str | None


class _MessageGroup(NamedTuple):
    """A group of messages: its code, and what its messages have in common.

    `communicator` is None if it was not recorded.
    """

    code: int
    collective: str
    communicator: str | None


class ByOrder:
    """Matches the free kernels of a process with its free messages, by the order of their starts.

    A kernel is free if its message is not known yet, and a message is free if no kernel is known to carry it.

    Each communicator runs its kernels on a stream of its own. Kernels whose messages are known show which stream
    belongs to which communicator, so free kernels on such a stream are matched with free messages of its communicator.
    This is done for one collective after another. The free kernels on all other streams are matched only if those of
    one collective are all on one device, and all messages of that collective are of one communicator.

    In the example there are four kernels on one stream, and four calls. The first kernel began before the first call,
    so the kernel's own call was not recorded. The last call began after the last kernel, so the call's own kernel was
    not recorded. The remaining three kernels are paired with the remaining three calls:

    >>> kernels = Events(
    ...     fields=("device", "stream", "collective"),
    ...     groups=[(0, 1, 7, "all_reduce")],
    ...     code=np.zeros(4, int),
    ...     arrays={"start": np.array([2, 12, 23, 31])},
    ...     locations={(0, 4242, 1): slice(0, 4)},
    ... )
    >>> messages = Events(
    ...     fields=("collective", "communicator"),
    ...     groups=[(0, "all_reduce", "0xab")],
    ...     code=np.zeros(4, int),
    ...     arrays={"start": np.array([10, 20, 30, 40])},
    ...     locations={(0, 4242): slice(0, 4)},
    ... )
    >>> message_of_kernel = np.full(4, NO_MESSAGE)
    >>> process = ProcessMessages((0, 4242), kernels, messages, np.arange(4), np.arange(4))
    >>> ByOrder(process, message_of_kernel).match()
    >>> message_of_kernel.tolist()
    [-1, 0, 1, 2]
    """

    def __init__(self, process: ProcessMessages, message_of_kernel: Integers) -> None:
        """Take the kernels and messages of a process.

        `message_of_kernel`: for each kernel of all processes the position of its message, or `NO_MESSAGE`. `match`
        writes the messages that it finds into this array.
        """
        self._kernels = process.kernels
        self._messages = process.messages
        self._message_of_kernel = message_of_kernel
        self._kernel_groups = _kernel_groups(process.kernels)
        self._message_groups = _message_groups(process.messages)

        carried = message_of_kernel.take(process.kernel_positions)
        is_free_kernel = carried == NO_MESSAGE
        is_free_message = ~np.isin(process.message_positions, carried)
        self._free_kernels = process.kernel_positions[is_free_kernel]
        self._free_messages = process.message_positions[is_free_message]

        # A kernel whose message is known shows the communicator of its stream.
        self._communicator_of_stream = self._communicators_of_streams(process.kernel_positions[~is_free_kernel])
        self._communicators_of_collective: dict[str, set[str | None]] = {}
        for message in self._groups_of_messages(process.message_positions):
            communicators = self._communicators_of_collective.setdefault(message.collective, set())
            communicators.add(message.communicator)

    def match(self) -> None:
        """Match the free kernels with the free messages of the same collective."""
        codes = np.unique(self._kernels.codes(self._free_kernels))
        kernel_groups = [self._kernel_groups[code] for code in codes.tolist()]
        message_groups = self._groups_of_messages(self._free_messages)
        for collective in dict.fromkeys(message.collective for message in message_groups):
            self._match_collective(
                collective,
                [kernel for kernel in kernel_groups if kernel.collective == collective],
                [message for message in message_groups if message.collective == collective],
            )

    def _match_collective(self, collective: str, kernels: list[_KernelGroup], messages: list[_MessageGroup]) -> None:
        """Match free kernels and messages of a collective: on streams of known communicators first, then on others."""
        stream_counts = Counter(self._communicator_of_stream.values())
        for stream, communicator in self._communicator_of_stream.items():
            # If a communicator has several streams, it is not known to which of them a message belongs.
            if stream_counts[communicator] == 1:
                self._pair(
                    [kernel for kernel in kernels if kernel.stream == stream],
                    [message for message in messages if message.communicator == communicator],
                )
        on_other_streams = [kernel for kernel in kernels if kernel.stream not in self._communicator_of_stream]
        devices = {kernel.stream.device for kernel in on_other_streams}
        if len(devices) == 1 and len(self._communicators_of_collective[collective]) == 1:
            self._pair(on_other_streams, messages)

    def _groups_of_messages(self, positions: Integers) -> list[_MessageGroup]:
        """Return the groups of the messages at some positions, each group once."""
        codes = np.unique(self._messages.codes(positions))
        return [self._message_groups[code] for code in codes.tolist()]

    def _communicators_of_streams(self, kernels: Integers) -> dict[_Stream, str | None]:
        """Return the communicator of each stream, from kernels whose messages are known.

        `kernels`: the positions of these kernels. A stream is left out if their messages are of several communicators.
        """
        kernel_codes = self._kernels.codes(kernels)
        message_codes = self._messages.codes(self._message_of_kernel.take(kernels))
        pairs = np.unique(np.stack((kernel_codes, message_codes)), axis=1)
        communicators: dict[_Stream, set[str | None]] = {}
        for kernel_code, message_code in pairs.T.tolist():
            stream = self._kernel_groups[kernel_code].stream
            communicator = self._message_groups[message_code].communicator
            communicators.setdefault(stream, set()).add(communicator)
        return {stream: names.pop() for stream, names in communicators.items() if len(names) == 1}

    def _pair(self, kernel_groups: list[_KernelGroup], message_groups: list[_MessageGroup]) -> None:
        """Match free kernels of some groups with free messages of some groups, one by one in the order of their starts.

        Kernels that began before the first call are left out, because their calls were not recorded. Calls that began
        after the last kernel are left out, because their kernels were not recorded. If unequal numbers of kernels and
        calls remain, nothing is matched.
        """
        kernel_codes = [group.code for group in kernel_groups]
        message_codes = [group.code for group in message_groups]
        kernels = self._kernels.of_groups(kernel_codes, self._free_kernels)
        calls = self._messages.of_groups(message_codes, self._free_messages)
        # Some messages may have been matched with kernels of another stream since `_free_messages` was made.
        calls = calls[~np.isin(calls, self._message_of_kernel)]
        if not len(kernels) or not len(calls):
            return
        kernels = self._kernels.in_time_order(kernels)
        calls = self._messages.in_time_order(calls)
        kernel_starts = self._kernels.number("start", kernels)
        call_starts = self._messages.number("start", calls)
        kernels = kernels[kernel_starts >= call_starts[0]]
        calls = calls[call_starts <= kernel_starts[-1]]
        if len(kernels) == len(calls):
            self._message_of_kernel[kernels] = calls


def _kernel_groups(kernels: Events) -> list[_KernelGroup]:
    """Return the groups of kernels in the order of their codes."""
    groups: list[_KernelGroup] = []
    # Streams are not read if nothing needs them; then all kernels of a device are in one stream.
    streams: list[int | None] = [None] * len(kernels.groups)
    if "stream" in kernels.fields:
        streams = kernels.group_field("stream")
    for code, (trace, device, collective) in enumerate(kernels.group_fields("device", "collective")):
        groups.append(_KernelGroup(code, _Stream(trace, device, streams[code]), collective))
    return groups


def _message_groups(messages: Events) -> list[_MessageGroup]:
    """Return the groups of messages in the order of their codes."""
    groups: list[_MessageGroup] = []
    for code, (_, collective, communicator) in enumerate(messages.group_fields("collective", "communicator")):
        groups.append(_MessageGroup(code, collective, communicator))
    return groups

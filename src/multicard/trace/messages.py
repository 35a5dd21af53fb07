"""Which message each communication kernel carries.

PyTorch's profiler notes the message on the kernel itself. NCCL reports each of its calls to Nsight Systems instead:
there a kernel carries the message of the call during which it was launched. A kernel that was launched later, as at the
end of a group of calls, gets its message by order within its communicator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multicard.trace.collect import Events, Place
from multicard.trace.launches import first_position
from multicard.trace.model import MISSING, Integers

# Fields of the groups of communication kernels, beside the trace.
COMMUNICATION_FIELDS = ("process", "device", "stream", "name", "class", "collective", "ranks", "communicator")

# In place of a position: a kernel's message, or the call that launched it, is unknown.
_NONE = -1


class _Message(NamedTuple):
    """What describes a message; `ranks` and `communicator` are None where they were not recorded."""

    collective: str
    ranks: int | None
    communicator: str | None


def communication_kernels(kernels: Events, api: Events | None, messages: Events | None) -> Events:
    """Return the communication kernels with their messages, in the order of `kernels`.

    Their fields are `COMMUNICATION_FIELDS`: the collective of a message decides over that of the kernel's name; `ranks`
    and `communicator` are None where unknown. Their arrays are those of `kernels`, and `bytes` and `sequence` of the
    message, `MISSING` where unknown, and `kernel`, the position in `kernels`.

    `kernels`: with process, device, name, class, collective and, for messages, start and correlation; `api`: calls
    with thread, correlation and start, or None if the calls were not recorded.
    """
    is_communication = kernels.mask(of_class == "communication" for _, of_class in kernels.values("class"))
    chosen = kernels.where(is_communication)
    message_of_kernel = np.full(len(chosen.code), _NONE)
    if messages is not None and len(messages.code):
        message_of_kernel = _messages_of(chosen, api, messages)

    code, groups = _groups(chosen, messages, message_of_kernel)
    message_bytes = _numbers_of(messages, message_of_kernel, "bytes")
    # How the bytes of a call that launched several kernels are divided among them is unknown.
    has_message = message_of_kernel != _NONE
    kernels_of_message = np.bincount(message_of_kernel[has_message], minlength=1)
    message_bytes[has_message & (kernels_of_message.take(message_of_kernel, mode="clip") > 1)] = MISSING
    arrays = chosen.arrays | {
        "bytes": message_bytes,
        "sequence": _numbers_of(messages, message_of_kernel, "sequence"),
        "kernel": np.flatnonzero(is_communication),
    }
    return Events(COMMUNICATION_FIELDS, groups, code, arrays, dict(chosen.places))


def _groups(
    kernels: Events, messages: Events | None, message_of_kernel: Integers
) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Return for each kernel the code of its group, and the groups: the pairs of kernel and message that occur."""
    kernel_groups = kernels.described()
    message_groups: list[_Message] = []
    # The code of each kernel's message counts from 1; 0 stands for no message.
    message_code = np.zeros(len(message_of_kernel), np.int64)
    if messages is not None:
        message_groups = [_Message(*values) for _, *values in messages.values("collective", "ranks", "communicator")]
        has_message = message_of_kernel != _NONE
        message_code[has_message] = messages.code.take(message_of_kernel[has_message]).astype(np.int64) + 1
    base = len(message_groups) + 1
    pairs, code = np.unique(kernels.code * np.int64(base) + message_code, return_inverse=True)

    groups = []
    for pair in pairs.tolist():
        kernel_code, code_of_message = divmod(pair, base)
        trace = kernels.groups[kernel_code][0]
        kernel = kernel_groups[kernel_code]
        message = _Message(kernel["collective"], None, None)
        if code_of_message:
            message = message_groups[code_of_message - 1]
        where = (trace, kernel["process"], kernel["device"], kernel.get("stream"))
        groups.append((*where, kernel["name"], kernel["class"], *message))
    return code.astype(np.int64), groups


def _numbers_of(messages: Events | None, message_of_kernel: Integers, name: str) -> Integers:
    """Return a number of the message that each kernel carries; `MISSING` for those without."""
    numbers = np.full(len(message_of_kernel), MISSING, np.int64)
    if messages is not None:
        has_message = message_of_kernel != _NONE
        numbers[has_message] = messages.arrays[name].take(message_of_kernel[has_message])
    return numbers


@dataclass(frozen=True)
class _Process:
    """The communication kernels of one process, and its messages, by their positions among all."""

    owner: Place
    kernels: Events
    messages: Events
    kernel_positions: Integers
    message_positions: Integers


def _messages_of(kernels: Events, api: Events | None, messages: Events) -> Integers:
    """Return the position of the message that each kernel carries, or `_NONE`."""
    message_of_kernel = np.full(len(kernels.code), _NONE)
    for owner, part in messages.places.items():
        kernel_parts = [own for place, own in kernels.places.items() if place[:2] == owner]
        if not kernel_parts:
            continue
        positions = np.concatenate([np.arange(own.start, own.stop) for own in kernel_parts])
        is_noted = messages.arrays["kernel_start"][part] != MISSING
        noted = np.flatnonzero(is_noted) + part.start
        if len(noted):
            process = _Process(owner, kernels, messages, positions, noted)
            message_of_kernel[positions] = _by_noted_kernel(process)
        calls = np.flatnonzero(~is_noted) + part.start
        if len(calls):
            if api is not None:
                without = positions[message_of_kernel.take(positions) == _NONE]
                process = _Process(owner, kernels, messages, without, calls)
                message_of_kernel[without] = _by_call(process, api)
            _ByOrder(_Process(owner, kernels, messages, positions, calls), message_of_kernel).match()
    return message_of_kernel


def _by_noted_kernel(process: _Process) -> Integers:
    """Return the message that was noted on each kernel: the one with its correlation and start, or `_NONE`."""
    kernel_correlation, message_correlation = _common_codes(
        process.kernels.arrays["correlation"].take(process.kernel_positions),
        process.messages.arrays["correlation"].take(process.message_positions),
    )
    kernel_start, message_start = _common_codes(
        process.kernels.arrays["start"].take(process.kernel_positions),
        process.messages.arrays["kernel_start"].take(process.message_positions),
    )
    # Correlation and start become the digits of one number, which is equal where both are.
    base = 1 + max(kernel_start.max(initial=0), message_start.max(initial=0))
    kernel_key = kernel_correlation * base + kernel_start
    message_key = message_correlation * base + message_start

    order = np.argsort(message_key, kind="stable")
    position, is_noted = first_position(message_key.take(order), kernel_key)
    message = process.message_positions.take(order.take(position))
    return np.where(is_noted, message, _NONE)


def _common_codes(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Return numbers from 0 for the values of two arrays, equal where the values are.

    >>> [codes.tolist() for codes in _common_codes(np.array([70, 50]), np.array([50, 90]))]
    [[1, 0], [0, 2]]
    """
    values = np.concatenate((first.astype(np.int64), second.astype(np.int64)))
    _, codes = np.unique(values, return_inverse=True)
    return codes[: len(first)], codes[len(first) :]


def _by_call(process: _Process, api: Events) -> Integers:
    """Return the message of the call of NCCL during which each kernel was launched, on the same thread; or `_NONE`."""
    kernels, messages = process.kernels, process.messages
    launched, launching_code = _launches(
        api, process.owner, kernels.arrays["correlation"].take(process.kernel_positions)
    )
    launching_threads = [thread for _, thread in api.values("thread")]
    calling_threads = [thread for _, thread in messages.values("thread")]
    code_of_message = messages.code.take(process.message_positions)

    message_of_kernel = np.full(len(process.kernel_positions), _NONE)
    for thread in {thread for thread in calling_threads if thread is not None}:
        calls = process.message_positions[np.isin(code_of_message, _codes_equal(calling_threads, thread))]
        by_thread = np.flatnonzero(np.isin(launching_code, _codes_equal(launching_threads, thread)))
        if not len(calls) or not len(by_thread):
            continue
        starts = messages.arrays["start"].take(calls).astype(np.int64)
        order = np.argsort(starts, kind="stable")
        launch_time = launched.take(by_thread)
        # The latest call that began before each launch carries it, unless it ended before.
        latest = np.searchsorted(starts.take(order), launch_time, side="right") - 1
        call = calls.take(order.take(np.maximum(latest, 0)))
        ends = messages.arrays["end"].take(call).astype(np.int64)
        is_during = (latest >= 0) & (launch_time <= ends)
        message_of_kernel[by_thread[is_during]] = call[is_during]
    return message_of_kernel


def _codes_equal(values: Sequence[Any], value: Any) -> list[int]:
    """Return the codes of the groups that have a value, where `values` has one for each group."""
    return [code for code, other in enumerate(values) if other == value]


def _launches(api: Events, owner: Place, correlation: Integers) -> tuple[Integers, Integers]:
    """Return when the call began that launched each kernel of these correlations, and the code of its group.

    The code is `_NONE` where the call was not recorded. Of calls with one correlation the one that began first counts.
    """
    part = api.at(owner)
    start = np.zeros(len(correlation), np.int64)
    code = np.full(len(correlation), _NONE)
    # Rows that repeat a call with its backtrace are left out.
    is_call = api.mask([api_of_call != "backtrace" for _, api_of_call in api.values("api")], part)
    is_wanted = np.isin(api.arrays["correlation"][part], correlation[correlation >= 0])
    calls = np.flatnonzero(is_call & is_wanted) + part.start
    if not len(calls):
        return start, code
    calls = calls.take(np.lexsort((api.arrays["start"].take(calls), api.arrays["correlation"].take(calls))))
    position, is_launched = first_position(api.arrays["correlation"].take(calls), correlation)
    launching_call = calls.take(position[is_launched])
    start[is_launched] = api.arrays["start"].take(launching_call)
    code[is_launched] = api.code.take(launching_call)
    return start, code


class _ByOrder:
    """Gives the kernels of a process that have no message yet its remaining messages, by order.

    A communicator has a stream of its own, which kernels that have their messages show. Kernels of other streams are
    matched only if all of one collective are on one device, and all its messages are of one communicator.
    """

    def __init__(self, process: _Process, message_of_kernel: Integers) -> None:
        """Take the kernels and messages of a process, and what each kernel of all processes carries, to add to it."""
        self._kernels = process.kernels
        self._messages = process.messages
        self._message_of_kernel = message_of_kernel
        carried = message_of_kernel.take(process.kernel_positions)
        self._free_kernels = process.kernel_positions[carried == _NONE]
        self._free_messages = process.message_positions[~np.isin(process.message_positions, carried)]

        stream_fields = ["stream"] if "stream" in self._kernels.fields else []
        self._stream_of_kernel_code = self._kernels.values("device", *stream_fields)
        self._collective_of_kernel_code = [collective for _, collective in self._kernels.values("collective")]
        self._collective_of_message_code = [collective for _, collective in self._messages.values("collective")]
        self._communicator_of_message_code = [name for _, name in self._messages.values("communicator")]

        self._communicators_of_collective: dict[str, set[Any]] = {}
        for code in np.unique(self._messages.code.take(process.message_positions)).tolist():
            collective = self._collective_of_message_code[code]
            communicators = self._communicators_of_collective.setdefault(collective, set())
            communicators.add(self._communicator_of_message_code[code])
        self._communicator_of_stream = self._communicators_of_streams(process.kernel_positions[carried != _NONE])

    def match(self) -> None:
        """Match what remains of each communicator, then of each collective."""
        kernel_codes = np.unique(self._kernels.code.take(self._free_kernels)).tolist()
        message_codes = np.unique(self._messages.code.take(self._free_messages)).tolist()
        for collective in dict.fromkeys(self._collective_of_message_code[code] for code in message_codes):
            self._match_collective(
                collective,
                [code for code in kernel_codes if self._collective_of_kernel_code[code] == collective],
                [code for code in message_codes if self._collective_of_message_code[code] == collective],
            )

    def _match_collective(self, collective: str, kernel_codes: list[int], message_codes: list[int]) -> None:
        streams_of_communicators = list(self._communicator_of_stream.values())
        for stream, communicator in self._communicator_of_stream.items():
            # Where a communicator has two streams, the one that a message belongs to is unknown.
            if streams_of_communicators.count(communicator) == 1:
                self._pair(
                    [code for code in kernel_codes if self._stream_of_kernel_code[code] == stream],
                    [code for code in message_codes if self._communicator_of_message_code[code] == communicator],
                )
        on_other_streams = [
            code for code in kernel_codes if self._stream_of_kernel_code[code] not in self._communicator_of_stream
        ]
        devices = {self._stream_of_kernel_code[code][1] for code in on_other_streams}
        if len(devices) == 1 and len(self._communicators_of_collective[collective]) == 1:
            self._pair(on_other_streams, message_codes)

    def _communicators_of_streams(self, kernels: Integers) -> dict[tuple[Any, ...], Any]:
        """Return the communicator of each stream whose kernels with messages are all of one communicator."""
        kernel_codes = self._kernels.code.take(kernels)
        message_codes = self._messages.code.take(self._message_of_kernel.take(kernels))
        pairs = np.unique(np.stack((kernel_codes, message_codes)), axis=1)
        communicators: dict[tuple[Any, ...], set[Any]] = {}
        for kernel_code, message_code in pairs.T.tolist():
            stream = self._stream_of_kernel_code[kernel_code]
            communicators.setdefault(stream, set()).add(self._communicator_of_message_code[message_code])
        return {stream: next(iter(names)) for stream, names in communicators.items() if len(names) == 1}

    def _pair(self, kernel_codes: list[int], message_codes: list[int]) -> None:
        """Give the kernels of some groups the messages of some groups in order, where there are as many of both.

        A kernel that began before the first of the calls, and a call that began after the last of the kernels, have no
        partner in the capture.
        """
        kernels = _in_order(self._kernels, self._free_kernels, kernel_codes)
        calls = _in_order(self._messages, self._free_messages, message_codes)
        calls = calls[~np.isin(calls, self._message_of_kernel)]
        if not len(kernels) or not len(calls):
            return
        kernel_starts = self._kernels.arrays["start"].take(kernels).astype(np.int64)
        call_starts = self._messages.arrays["start"].take(calls).astype(np.int64)
        kernels = kernels[kernel_starts >= call_starts[0]]
        calls = calls[call_starts <= kernel_starts[-1]]
        if len(kernels) == len(calls):
            self._message_of_kernel[kernels] = calls


def _in_order(events: Events, positions: Integers, codes: list[int]) -> Integers:
    """Return those of some events that are of some groups, in the order of their starts."""
    chosen = positions[np.isin(events.code.take(positions), codes)]
    return chosen.take(np.argsort(events.arrays["start"].take(chosen), kind="stable"))

"""Find the message that each communication kernel carries.

PyTorch's profiler records the message together with the kernel that carries it. Nsight Systems records no such link:
there NCCL reports each of its calls with the size of the message, and a kernel carries the message of the call during
which it was launched. A kernel that was launched after its call, such as at the end of a group of calls, is matched
with a message by order (`message_order`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.trace.events import Events, Owner
from multicard.trace.launches import first_position
from multicard.trace.message_order import NO_MESSAGE, ByOrder, ProcessMessages
from multicard.trace.model import MISSING, Integers

Mask = npt.NDArray[np.bool_]

# Fields of the groups of communication kernels, after the number of the trace.
COMMUNICATION_FIELDS = ("process", "device", "stream", "name", "class", "collective", "ranks", "communicator")


class _Message(NamedTuple):
    """The fields of a message: its collective, the number of ranks that take part, and the communicator.

    `ranks` and `communicator` are None where they were not recorded. `collective` is None only for a kernel without a
    message whose name does not contain it.
    """

    collective: str | None
    ranks: int | None
    communicator: str | None


def communication_kernels(kernels: Events, api: Events | None, messages: Events | None) -> Events:
    """Return the communication kernels among `kernels`, in the same order, with the messages that they carry.

    The fields of the result are `COMMUNICATION_FIELDS`. `collective` is that of the message; if the message is not
    known, it is the one in the kernel's name. `ranks` and `communicator` are None if the message is not known or lacks
    them.

    The result has the arrays of `kernels` and three more. `bytes` and `sequence` are those of the message, `MISSING` if
    the message is not known or lacks them; `bytes` is `MISSING` also if another kernel carries the same message.
    `kernel` is the position in `kernels`.

    `kernels` must have process, device, name, class and collective, and for messages also start and correlation. `api`:
    the calls, with api, thread, correlation and start; None if calls were not recorded or not read. `messages`: None if
    messages were not recorded or not read.
    """
    is_communication = kernels.mask(class_name == "communication" for class_name in kernels.group_field("class"))
    chosen = kernels.where(is_communication)
    message_of_kernel = np.full(len(chosen.code), NO_MESSAGE)
    if messages is not None and len(messages.code):
        message_of_kernel = _messages_of(chosen, api, messages)

    code, groups = _groups(chosen, messages, message_of_kernel)
    message_bytes = _numbers_of(messages, message_of_kernel, "bytes")
    # If a call launched several kernels, it is not known how the bytes of its message are divided among them.
    message_bytes[_shares_message(message_of_kernel)] = MISSING
    arrays = chosen.arrays | {
        "bytes": message_bytes,
        "sequence": _numbers_of(messages, message_of_kernel, "sequence"),
        "kernel": np.flatnonzero(is_communication),
    }
    return Events(COMMUNICATION_FIELDS, groups, code, arrays, dict(chosen.locations))


def _shares_message(message_of_kernel: Integers) -> Mask:
    """Return True for each kernel whose message another kernel carries, too.

    >>> _shares_message(np.array([4, 9, 4, NO_MESSAGE])).tolist()
    [True, False, True, False]
    """
    has_message = message_of_kernel != NO_MESSAGE
    kernels_of_message = np.bincount(message_of_kernel[has_message], minlength=1)
    # A kernel without a message has a negative index, which the mode "clip" makes valid. Its count is not used.
    kernel_count = kernels_of_message.take(message_of_kernel, mode="clip")
    return has_message & (kernel_count > 1)


class _KernelGroup(NamedTuple):
    """The fields of a group of kernels.

    `stream` is None if streams were not read, and `collective` if the name of the kernels does not contain it.
    """

    trace: int
    process: int
    device: int
    stream: int | None
    name: str
    class_name: str
    collective: str | None


def _groups(
    kernels: Events, messages: Events | None, message_of_kernel: Integers
) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Return the new code of each kernel, and the new groups, whose fields are `COMMUNICATION_FIELDS`.

    There is a new group for each pair of a kernel's old group and its message's group that occurs.
    """
    kernel_groups = _kernel_groups(kernels)
    message_groups, message_code = _message_groups(messages, message_of_kernel)
    # The codes of kernel and message become the two digits of one number.
    base = len(message_groups)
    pair_of_kernel = kernels.code * np.int64(base) + message_code
    pairs, code = np.unique(pair_of_kernel, return_inverse=True)
    groups: list[tuple[Any, ...]] = []
    for pair in pairs.tolist():
        kernel_code, code_of_message = divmod(pair, base)
        kernel = kernel_groups[kernel_code]
        message = message_groups[code_of_message] or _Message(kernel.collective, ranks=None, communicator=None)
        # In the order of `COMMUNICATION_FIELDS`, after the trace.
        kernel_fields = (kernel.trace, kernel.process, kernel.device, kernel.stream, kernel.name, kernel.class_name)
        groups.append((*kernel_fields, message.collective, message.ranks, message.communicator))
    return code.astype(np.int64), groups


def _kernel_groups(kernels: Events) -> list[_KernelGroup]:
    """Return the fields of each group of kernels, by its code."""
    fields = kernels.group_fields("process", "device", "name", "class", "collective")
    streams: list[int | None] = [None] * len(fields)
    if "stream" in kernels.fields:
        streams = kernels.group_field("stream")
    groups = []
    for stream, (trace, process, device, name, class_name, collective) in zip(streams, fields, strict=True):
        groups.append(_KernelGroup(trace, process, device, stream, name, class_name, collective))
    return groups


def _message_groups(messages: Events | None, message_of_kernel: Integers) -> tuple[list[_Message | None], Integers]:
    """Return the fields of each group of messages, and for each kernel the position of its message's group in the list.

    The first element of the list is None. It stands for kernels without a message.
    """
    groups: list[_Message | None] = [None]
    position = np.zeros(len(message_of_kernel), np.int64)
    if messages is not None:
        for _, collective, ranks, communicator in messages.group_fields("collective", "ranks", "communicator"):
            groups.append(_Message(collective, ranks, communicator))
        has_message = message_of_kernel != NO_MESSAGE
        codes = messages.codes(message_of_kernel[has_message])
        position[has_message] = codes.astype(np.int64) + 1
    return groups, position


def _numbers_of(messages: Events | None, message_of_kernel: Integers, name: str) -> Integers:
    """Return the number `name` of each kernel's message; `MISSING` for a kernel without a message."""
    numbers = np.full(len(message_of_kernel), MISSING, np.int64)
    if messages is not None:
        has_message = message_of_kernel != NO_MESSAGE
        message = message_of_kernel[has_message]
        numbers[has_message] = messages.arrays[name].take(message)
    return numbers


def _messages_of(kernels: Events, api: Events | None, messages: Events) -> Integers:
    """Return the position of the message that each kernel carries, or `NO_MESSAGE`."""
    message_of_kernel = np.full(len(kernels.code), NO_MESSAGE)
    for owner, part in messages.locations.items():
        on_devices = [kernels.positions(location) for location in kernels.locations_of(owner)]
        if not on_devices:
            continue
        positions = np.concatenate(on_devices)
        # PyTorch's profiler recorded the messages that have a kernel's start. All others are calls of NCCL.
        kernel_start = messages.arrays["kernel_start"][part]
        is_call = kernel_start == MISSING
        with_kernel = np.flatnonzero(~is_call) + part.start
        calls = np.flatnonzero(is_call) + part.start
        if len(with_kernel):
            process = ProcessMessages(owner, kernels, messages, positions, with_kernel)
            message_of_kernel[positions] = _by_recorded_kernel(process)
        if len(calls):
            process = ProcessMessages(owner, kernels, messages, positions, calls)
            _match_calls(process, api, message_of_kernel)
    return message_of_kernel


def _match_calls(process: ProcessMessages, api: Events | None, message_of_kernel: Integers) -> None:
    """Match the kernels of a process with its calls of NCCL: by the launching call, and the others by order.

    `message_of_kernel`: for each kernel of all processes the position of its message, or `NO_MESSAGE`. The messages
    are written into it.
    """
    if api is not None:
        positions = process.kernel_positions
        has_no_message = message_of_kernel.take(positions) == NO_MESSAGE
        without_message = positions[has_no_message]
        message_of_kernel[without_message] = _by_call(replace(process, kernel_positions=without_message), api)
    ByOrder(process, message_of_kernel).match()


def _by_recorded_kernel(process: ProcessMessages) -> Integers:
    """Return the position of the message that the profiler recorded with each kernel, or `NO_MESSAGE`.

    That message has the correlation of the kernel, and its `kernel_start` is the start of the kernel.
    """
    kernel_correlation, message_correlation = _common_codes(
        process.kernel_number("correlation"), process.message_number("correlation")
    )
    kernel_start, message_start = _common_codes(process.kernel_number("start"), process.message_number("kernel_start"))
    # Correlation and start become the digits of one number: a kernel and a message have the same number if they agree
    # in both.
    largest_start = max(kernel_start.max(initial=0), message_start.max(initial=0))
    base = 1 + largest_start
    kernel_key = kernel_correlation * base + kernel_start
    message_key = message_correlation * base + message_start

    order = np.argsort(message_key, kind="stable")
    position, has_message = first_position(message_key.take(order), kernel_key)
    message = process.message_positions.take(order.take(position))
    return np.where(has_message, message, NO_MESSAGE)


def _common_codes(first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Number the distinct values of two arrays from 0, and return the number of each value in both arrays.

    The values 50, 70 and 90 have the numbers 0, 1 and 2:

    >>> [codes.tolist() for codes in _common_codes(np.array([70, 50]), np.array([50, 90]))]
    [[1, 0], [0, 2]]
    """
    both = np.concatenate((first, second))
    _, codes = np.unique(both, return_inverse=True)
    return codes[: len(first)], codes[len(first) :]


def _by_call(process: ProcessMessages, api: Events) -> Integers:
    """Return for each kernel the message of the NCCL call during which the same thread launched the kernel.

    The message is `NO_MESSAGE` if the kernel was launched outside of NCCL calls, or its launching call was not
    recorded.
    """
    messages = process.messages
    launches = _launches(api, process.owner, process.kernel_number("correlation"))
    launching_threads = api.group_field("thread")
    calling_threads = messages.group_field("thread")
    message_of_kernel = np.full(len(process.kernel_positions), NO_MESSAGE)
    for thread in set(calling_threads) - {None}:
        codes_of_calls = _codes_equal(calling_threads, thread)
        codes_of_launches = _codes_equal(launching_threads, thread)
        calls = messages.of_groups(codes_of_calls, process.message_positions)
        launched = np.flatnonzero(np.isin(launches.code, codes_of_launches))
        if len(calls) and len(launched):
            launch_starts = launches.start.take(launched)
            call, is_during = _enclosing_calls(messages, calls, launch_starts)
            message_of_kernel[launched[is_during]] = call[is_during]
    return message_of_kernel


def _enclosing_calls(messages: Events, calls: Integers, moments: Integers) -> tuple[Integers, Mask]:
    """Return for each moment the last call that had begun by then, and True if that call had not ended before.

    If no call had begun, return the first call and False. There is at least one call.

    In the example the first call lasts from 10 to 20 and the second from 30 to 50. The moment 40 lies in the second
    call. At the moment 25 the first call is the last that had begun, but it had already ended:

    >>> times = {"start": np.array([10, 30]), "duration": np.array([10, 20]), "end": np.array([20, 50])}
    >>> messages = Events((), [], np.array([0, 0]), times, {})
    >>> call, is_during = _enclosing_calls(messages, np.array([0, 1]), np.array([40, 25]))
    >>> call.tolist(), is_during.tolist()
    ([1, 0], [True, False])
    """
    calls = messages.in_time_order(calls)
    call_starts = messages.number("start", calls)
    # The number of calls that had begun at each moment.
    begun = np.searchsorted(call_starts, moments, side="right")
    latest_call = calls.take(np.maximum(begun - 1, 0))
    call_end = messages.number("end", latest_call)
    is_during = (begun > 0) & (moments <= call_end)
    return latest_call, is_during


def _codes_equal(values: Sequence[Any], value: Any) -> list[int]:
    """Return the codes of the groups that have a value; `values` holds the value of each group, by code."""
    return [code for code, other in enumerate(values) if other == value]


# Stands in for the code of the group of a launching call that was not recorded.
_NO_CALL = -1


class _Launches(NamedTuple):
    """The launching call of each of some kernels: its start in nanoseconds, and the code of its group.

    If the call was not recorded, `code` is `_NO_CALL` and `start` is 0.
    """

    start: Integers
    code: Integers


def _launches(api: Events, owner: Owner, correlation: Integers) -> _Launches:
    """Return the calls that launched kernels of a process, given the correlation of each kernel.

    If several calls have the same correlation, the one that began first is the launching call.
    """
    start = np.zeros(len(correlation), np.int64)
    code = np.full(len(correlation), _NO_CALL)
    part = api.slice_of(owner)
    # Rows that repeat a call with its backtrace are left out.
    is_call = api.mask((name != "backtrace" for name in api.group_field("api")), part)
    wanted = correlation[correlation >= 0]
    is_wanted = np.isin(api.array_at("correlation", owner), wanted)
    calls = np.flatnonzero(is_call & is_wanted) + part.start
    if not len(calls):
        return _Launches(start, code)

    # A stable sort keeps calls with one correlation in the order of their starts.
    calls = api.in_time_order(calls)
    correlation_of_call = api.arrays["correlation"].take(calls)
    order = np.argsort(correlation_of_call, kind="stable")
    calls = calls.take(order)
    position, is_launched = first_position(correlation_of_call.take(order), correlation)
    launching_call = calls.take(position[is_launched])
    start[is_launched] = api.arrays["start"].take(launching_call)
    code[is_launched] = api.codes(launching_call)
    return _Launches(start, code)

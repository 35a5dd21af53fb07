"""Which message each communication kernel carries.

PyTorch's profiler notes the message on the kernel itself. NCCL tells Nsight Systems about each of its calls instead:
there a kernel carries the message of the call during which it was launched. A kernel that was launched later, as at the
end of a group of calls, gets its message by order within its communicator.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from multicard.trace.collect import Events, Place
from multicard.trace.model import MISSING, Integers

# Fields of the groups of communication kernels.
FIELDS = ("process", "device", "stream", "name", "class", "collective", "ranks", "communicator")

_NONE = -1  # position of a message that no kernel has, or of a kernel's message that is not known


def communication_kernels(kernels: Events, api: Events | None, messages: Events | None) -> Events:
    """Return the communication kernels with what their messages tell, in the order of `kernels`.

    Their fields are `FIELDS`: the collective of a message decides over that of the kernel's name; `ranks` and
    `communicator` are None where not known. Their arrays are those of `kernels`, and `bytes` and `sequence` of the
    message, `MISSING` where not known, and `kernel`, the position in `kernels`.

    `kernels`: with process, device, name, class, collective and, for messages, start and correlation; `api`: calls
    with thread, correlation and start, or None if the calls were not recorded.
    """
    chosen = kernels.mask(of_class == "communication" for _, of_class in kernels.values("class"))
    found = kernels.where(chosen)
    carried = np.full(len(found.code), _NONE)
    if messages is not None and len(messages.code):
        carried = _messages_of(found, api, messages)
    code, groups = _groups(found, messages, carried)
    numbers = {name: _numbers_of(messages, carried, name) for name in ("bytes", "sequence")}
    # A call that launched several kernels does not tell how its bytes are divided among them.
    times_carried = np.bincount(carried[carried != _NONE], minlength=1)
    numbers["bytes"][(carried != _NONE) & (times_carried.take(carried, mode="clip") > 1)] = MISSING
    arrays = found.arrays | numbers | {"kernel": np.flatnonzero(chosen)}
    return Events(FIELDS, groups, code, arrays, dict(found.places))


def _groups(kernels: Events, messages: Events | None, carried: Integers) -> tuple[Integers, list[tuple[Any, ...]]]:
    """Return the groups of kernels and their messages, and the code of each kernel's."""
    names = [name for name in ("process", "device", "stream", "name", "class", "collective") if name in kernels.fields]
    of_kernels = [dict(zip(("trace", *names), values, strict=True)) for values in kernels.values(*names)]
    of_messages = [] if messages is None else messages.values("collective", "ranks", "communicator")
    message_code = np.zeros(len(carried), np.int64)  # 0 stands for no message
    if messages is not None:
        has_message = carried != _NONE
        message_code[has_message] = messages.code.take(carried[has_message]).astype(np.int64) + 1
    pairs, code = np.unique(kernels.code * np.int64(len(of_messages) + 1) + message_code, return_inverse=True)
    groups = []
    for pair in pairs.tolist():
        kernel_code, message = divmod(pair, len(of_messages) + 1)
        kernel = of_kernels[kernel_code]
        collective, ranks, communicator = kernel["collective"], None, None
        if message:
            _, collective, ranks, communicator = of_messages[message - 1]
        place = (kernel["trace"], kernel["process"], kernel["device"], kernel.get("stream"))
        groups.append((*place, kernel["name"], kernel["class"], collective, ranks, communicator))
    return code.astype(np.int64), groups


def _numbers_of(messages: Events | None, carried: Integers, name: str) -> Integers:
    """Return a number of the message that each kernel carries."""
    numbers = np.full(len(carried), MISSING, np.int64)
    if messages is not None:
        known = carried != _NONE
        numbers[known] = messages.arrays[name].take(carried[known])
    return numbers


def _messages_of(kernels: Events, api: Events | None, messages: Events) -> Integers:
    """Return the position of the message that each kernel carries, or `_NONE`."""
    carried = np.full(len(kernels.code), _NONE)
    for owner, own_messages in messages.places.items():
        parts = [np.arange(own.start, own.stop) for place, own in kernels.places.items() if place[:2] == owner]
        if not parts:
            continue
        own_kernels = np.concatenate(parts)
        sent = np.arange(own_messages.start, own_messages.stop)
        noted = messages.arrays["kernel_start"][own_messages] != MISSING
        if noted.any():
            carried[own_kernels] = _by_kernel(kernels, own_kernels, messages, sent[noted])
        calls = sent[~noted]
        if len(calls) and api is not None:
            carried[own_kernels] = _by_call(kernels, own_kernels, api, owner, messages, calls)
        if len(calls):
            _by_order(kernels, own_kernels, messages, calls, carried)
    return carried


def _by_kernel(kernels: Events, own: Integers, messages: Events, sent: Integers) -> Integers:
    """Return the messages that were noted on the very kernels: those of the same correlation and start."""
    kernel_keys = [kernels.arrays[name].take(own).astype(np.int64) for name in ("correlation", "start")]
    message_keys = [messages.arrays[name].take(sent).astype(np.int64) for name in ("correlation", "kernel_start")]
    # Two numbers become one: the first in units of the number of different values of the second.
    kernel_key, message_key = np.zeros(len(own), np.int64), np.zeros(len(sent), np.int64)
    for of_kernels, of_messages in zip(kernel_keys, message_keys, strict=True):
        values, code = np.unique(np.concatenate((of_kernels, of_messages)), return_inverse=True)
        kernel_key = kernel_key * len(values) + code[: len(own)]
        message_key = message_key * len(values) + code[len(own) :]
    order = np.argsort(message_key, kind="stable")
    ordered = message_key.take(order)
    at = np.minimum(np.searchsorted(ordered, kernel_key), len(ordered) - 1)
    return np.where(ordered.take(at) == kernel_key, sent.take(order.take(at)), _NONE)


def _by_call(kernels: Events, own: Integers, api: Events, owner: Place, messages: Events, sent: Integers) -> Integers:
    """Return the messages of the calls of NCCL during which kernels were launched, on the same thread."""
    launched, launching_group = _launches(api, owner, kernels.arrays["correlation"].take(own))
    launching_threads = [thread for _, thread in api.values("thread")]
    calling_threads = [thread for _, thread in messages.values("thread")]
    carried = np.full(len(own), _NONE)
    for thread in {thread for thread in calling_threads if thread is not None}:
        calls = sent[np.isin(messages.code.take(sent), _where_equal(calling_threads, thread))]
        mine = np.flatnonzero(np.isin(launching_group, _where_equal(launching_threads, thread)))
        if not len(calls) or not len(mine):
            continue
        begins = messages.arrays["start"].take(calls).astype(np.int64)
        order = np.argsort(begins, kind="stable")
        latest = np.searchsorted(begins.take(order), launched.take(mine), side="right") - 1
        call = calls.take(order.take(np.maximum(latest, 0)))
        inside = (latest >= 0) & (launched.take(mine) <= messages.arrays["end"].take(call).astype(np.int64))
        carried[mine[inside]] = call[inside]
    return carried


def _where_equal(values: Sequence[Any], value: Any) -> list[int]:
    return [position for position, other in enumerate(values) if other == value]


def _launches(api: Events, owner: Place, correlation: Integers) -> tuple[Integers, Integers]:
    """Return when the call began that launched each kernel of these correlations, and the code of its group.

    The code is `_NONE` where the call was not recorded.
    """
    mine = api.at(owner)
    once = api.mask([kind != "backtrace" for _, kind in api.values("api")], mine)
    calls = np.flatnonzero(once & np.isin(api.arrays["correlation"][mine], correlation[correlation >= 0])) + mine.start
    start = np.zeros(len(correlation), np.int64)
    group = np.full(len(correlation), _NONE)
    if len(calls):
        # Of calls with one correlation the one that began first counts.
        order = np.lexsort((api.arrays["start"].take(calls), api.arrays["correlation"].take(calls)))
        calls = calls.take(order)
        numbers = api.arrays["correlation"].take(calls)
        at = np.minimum(np.searchsorted(numbers, correlation), len(numbers) - 1)
        known = numbers.take(at) == correlation
        call = calls.take(at[known])
        start[known] = api.arrays["start"].take(call)
        group[known] = api.code.take(call)
    return start, group


def _by_order(kernels: Events, own: Integers, messages: Events, sent: Integers, carried: Integers) -> None:
    """Give kernels of a process that have no message yet one of those that are left, by order.

    A communicator has a stream of its own, which kernels that have their messages show. Kernels of other streams are
    matched only if all of one collective are on one device, and all its messages of one communicator.
    """
    collective_of = [collective for _, collective in kernels.values("collective")]
    place_of = kernels.values("device", "stream") if "stream" in kernels.fields else kernels.values("device", "device")
    communicator_of = [communicator for _, communicator in messages.values("communicator")]
    kind_of = [collective for _, collective in messages.values("collective")]
    streams = _streams(kernels, own, carried, place_of, messages, communicator_of)

    free_kernels = own[carried.take(own) == _NONE]
    free_messages = sent[~np.isin(sent, carried.take(own))]
    kernel_codes = np.unique(kernels.code.take(free_kernels)).tolist()
    message_codes = np.unique(messages.code.take(free_messages)).tolist()
    for place, communicator in streams.items():
        # Of a communicator whose ranks are devices of one process nobody can tell which device a message is of.
        if list(streams.values()).count(communicator) > 1:
            continue
        for kind in {kind_of[code] for code in message_codes}:
            mine = [code for code in kernel_codes if place_of[code] == place and collective_of[code] == kind]
            theirs = [c for c in message_codes if kind_of[c] == kind and communicator_of[c] == communicator]
            _pair(kernels, free_kernels, mine, messages, free_messages, theirs, carried)
    communicators: dict[str, set[Any]] = {}
    for code in np.unique(messages.code.take(sent)).tolist():
        communicators.setdefault(kind_of[code], set()).add(communicator_of[code])
    for kind in {kind_of[code] for code in message_codes}:
        mine = [code for code in kernel_codes if place_of[code] not in streams and collective_of[code] == kind]
        theirs = [code for code in message_codes if kind_of[code] == kind]
        devices = {place_of[code][1] for code in mine}
        if len(devices) == 1 and len(communicators[kind]) == 1:
            _pair(kernels, free_kernels, mine, messages, free_messages, theirs, carried)


def _streams(
    kernels: Events,
    own: Integers,
    carried: Integers,
    place_of: Sequence[tuple[Any, ...]],
    messages: Events,
    communicator_of: Sequence[Any],
) -> dict[tuple[Any, ...], Any]:
    """Return the communicator of each stream that runs kernels of one communicator alone."""
    known = own[carried.take(own) != _NONE]
    pairs = np.stack((kernels.code.take(known), messages.code.take(carried.take(known))))
    found: dict[tuple[Any, ...], set[Any]] = {}
    for kernel, message in np.unique(pairs, axis=1).T.tolist():
        found.setdefault(place_of[kernel], set()).add(communicator_of[message])
    return {place: next(iter(names)) for place, names in found.items() if len(names) == 1}


def _pair(
    kernels: Events,
    free_kernels: Integers,
    kernel_codes: list[int],
    messages: Events,
    free_messages: Integers,
    message_codes: list[int],
    carried: Integers,
) -> None:
    """Give the kernels of some groups the messages of some groups in order, where there are as many of both.

    A kernel that began before the first of the calls, and a call that began after the last of the kernels, have no
    partner in the capture.
    """
    mine = _in_order(kernels, free_kernels, kernel_codes)
    calls = _in_order(messages, free_messages, message_codes)
    if not len(mine) or not len(calls):
        return
    starts = kernels.arrays["start"].take(mine).astype(np.int64)
    begins = messages.arrays["start"].take(calls).astype(np.int64)
    mine = mine[starts >= begins[0]]
    calls = calls[begins <= starts[-1]]
    if len(mine) == len(calls):
        carried[mine] = calls


def _in_order(events: Events, among: Integers, codes: list[int]) -> Integers:
    """Return the positions of the events of some groups, in the order of their starts."""
    own = among[np.isin(events.code.take(among), codes)]
    return own.take(np.argsort(events.arrays["start"].take(own), kind="stable"))

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

_NONE = -1  # no position: a kernel's message is not known, or the call that launched it was not recorded


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
        if len(calls):
            without = own_kernels[carried.take(own_kernels) == _NONE]
            if api is not None:
                carried[without] = _by_call(kernels, without, api, owner, messages, calls)
            _ByOrder(kernels, own_kernels, messages, calls, carried).join()
    return carried


def _by_kernel(kernels: Events, own: Integers, messages: Events, sent: Integers) -> Integers:
    """Return the messages that were noted on the very kernels: those of the same correlation and start."""
    kernel_keys = [kernels.arrays[name].take(own).astype(np.int64) for name in ("correlation", "start")]
    message_keys = [messages.arrays[name].take(sent).astype(np.int64) for name in ("correlation", "kernel_start")]
    # Both columns are combined into one key that sorts as they do: digits of a number with mixed bases.
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


class _ByOrder:
    """Gives the kernels of a process that have no message yet those that are left, by order.

    A communicator has a stream of its own, which kernels that have their messages show. Kernels of other streams are
    matched only if all of one collective are on one device, and all its messages of one communicator.
    """

    def __init__(self, kernels: Events, own: Integers, messages: Events, sent: Integers, carried: Integers) -> None:
        """Take the positions of the kernels and messages of a process, and what each kernel carries, to add to it."""
        self._kernels, self._messages, self._carried = kernels, messages, carried
        self._free_kernels = own[carried.take(own) == _NONE]
        self._free_messages = sent[~np.isin(sent, carried.take(own))]
        # Of each group of kernels, by its code, and of each group of messages.
        self._collectives = [collective for _, collective in kernels.values("collective")]
        self._places = kernels.values("device", *(["stream"] if "stream" in kernels.fields else []))
        self._kinds = [collective for _, collective in messages.values("collective")]
        self._communicators = [communicator for _, communicator in messages.values("communicator")]
        self._streams = self._communicator_of_streams(own[carried.take(own) != _NONE])
        self._communicators_of_kind: dict[str, set[Any]] = {}
        for code in np.unique(messages.code.take(sent)).tolist():
            self._communicators_of_kind.setdefault(self._kinds[code], set()).add(self._communicators[code])

    def join(self) -> None:
        """Match what is left of each communicator, then of each collective."""
        kernel_codes = np.unique(self._kernels.code.take(self._free_kernels)).tolist()
        message_codes = np.unique(self._messages.code.take(self._free_messages)).tolist()
        for kind in {self._kinds[code] for code in message_codes}:
            kernels = [code for code in kernel_codes if self._collectives[code] == kind]
            messages = [code for code in message_codes if self._kinds[code] == kind]
            for place, communicator in self._streams.items():
                # Where a communicator has two streams, nobody can tell which of them a message is of.
                if list(self._streams.values()).count(communicator) == 1:
                    of_stream = [code for code in kernels if self._places[code] == place]
                    self._pair(of_stream, [code for code in messages if self._communicators[code] == communicator])
            elsewhere = [code for code in kernels if self._places[code] not in self._streams]
            devices = {self._places[code][1] for code in elsewhere}
            if len(devices) == 1 and len(self._communicators_of_kind[kind]) == 1:
                self._pair(elsewhere, messages)

    def _communicator_of_streams(self, known: Integers) -> dict[tuple[Any, ...], Any]:
        """Return the communicator of each stream all of whose known messages are of one."""
        pairs = np.stack((self._kernels.code.take(known), self._messages.code.take(self._carried.take(known))))
        found: dict[tuple[Any, ...], set[Any]] = {}
        for kernel, message in np.unique(pairs, axis=1).T.tolist():
            found.setdefault(self._places[kernel], set()).add(self._communicators[message])
        return {place: next(iter(names)) for place, names in found.items() if len(names) == 1}

    def _pair(self, kernel_codes: list[int], message_codes: list[int]) -> None:
        """Give the kernels of some groups the messages of some groups in order, where there are as many of both.

        A kernel that began before the first of the calls, and a call that began after the last of the kernels, have no
        partner in the capture.
        """
        kernels = _in_order(self._kernels, self._free_kernels, kernel_codes)
        calls = _in_order(self._messages, self._free_messages, message_codes)
        calls = calls[~np.isin(calls, self._carried)]
        if not len(kernels) or not len(calls):
            return
        starts = self._kernels.arrays["start"].take(kernels).astype(np.int64)
        begins = self._messages.arrays["start"].take(calls).astype(np.int64)
        kernels = kernels[starts >= begins[0]]
        calls = calls[begins <= starts[-1]]
        if len(kernels) == len(calls):
            self._carried[kernels] = calls


def _in_order(events: Events, among: Integers, codes: list[int]) -> Integers:
    """Return the positions of the events of some groups, in the order of their starts."""
    own = among[np.isin(events.code.take(among), codes)]
    return own.take(np.argsort(events.arrays["start"].take(own), kind="stable"))

"""Decode the JSON of a trace: its events, and what the file states about itself.

Most events of a trace are skipped or counted only, and decoding them is most of the work of reading it. So a sound file
is decoded once, into records with no more fields than are used. Only a file that does not decode is repaired
(`repair`), or decoded into plain dictionaries, of which records are made one by one.
"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.trace.kineto.findings import LIST_AT_TOP, NO_EVENTS, Findings
from multicard.trace.kineto.repair import as_utf_8, repair
from multicard.trace.kineto.values import Scalar, scalar

_LIST = re.compile(rb"\s*\[")

# A time as the file has it. `events.with_times` replaces texts by decimal numbers, which msgspec itself decodes into no
# field that may hold a text, too.
if TYPE_CHECKING:
    Time = Scalar | Decimal
else:
    Time = Scalar


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event's `args` that are used."""

    correlation: Scalar = None
    device: Scalar = None
    stream: Scalar = None
    queue: Scalar = msgspec.field(default=None, name="sycl queue")
    bytes: Scalar = None
    dtype: Scalar = None
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    ranks: Scalar = msgspec.field(default=None, name="Group size")
    sent: Scalar = msgspec.field(default=None, name="In msg nelems")
    received: Scalar = msgspec.field(default=None, name="Out msg nelems")
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    sequence: Scalar = msgspec.field(default=None, name="Seq")


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are used.

    `ph`: its phase, such as "X" for a complete event, and "B" and "E" for the begin and the end of one. `cat`: its
    category. `ts`, `dur`: start and duration in microseconds.
    """

    ph: str | None = None
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Time = None
    dur: Time = 0
    args: Arguments | None = NO_ARGUMENTS


class Document(msgspec.Struct):
    """The fields of a file that are used."""

    traceEvents: list[Event]  # noqa: N815, the name in the file
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    traceName: Any = None  # noqa: N815
    hostname: Any = None


def decode(text: bytes, findings: Findings) -> Document:
    """Return the document that a text holds, repaired where it can be.

    Raises `msgspec.DecodeError` if the text is not JSON. Raises `msgspec.ValidationError` if it has no list of events.
    """
    try:
        return _decode(text, findings)
    except msgspec.ValidationError:
        # It is JSON, but a field has another type than it should. The decoder into records skips texts that it does not
        # need, the one into plain values needs all of them to be UTF-8.
        return _from_plain(msgspec.json.decode(as_utf_8(text, findings)), findings)
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = repair(text, findings)
    # After a repair, too, a field may have another type than it should.
    try:
        return _decode(repaired, findings)
    except msgspec.ValidationError:
        return _from_plain(msgspec.json.decode(repaired), findings)


def _decode(text: bytes, findings: Findings) -> Document:
    """Return the document of a text that is sound.

    Raises `msgspec.ValidationError` if a field has another type than it should, and its parent class
    `msgspec.DecodeError` if the text is not JSON.
    """
    if _LIST.match(text):
        return _list_at_top(msgspec.json.decode(text, type=list[Event]), findings)
    return msgspec.json.decode(text, type=Document)


def _from_plain(plain: Any, findings: Findings) -> Document:
    """Return a document made of dictionaries and lists; a value of an unexpected type counts as missing."""
    if isinstance(plain, list):
        return _list_at_top(_events(plain, findings), findings)
    if not isinstance(plain, dict) or not isinstance(plain.get("traceEvents"), list):
        raise msgspec.ValidationError("Expected `object` with an `array` traceEvents")
    names = [name for name in Document.__struct_fields__ if name != "traceEvents"]
    metadata = {name: plain[name] for name in names if name in plain}
    return Document(_events(plain["traceEvents"], findings), **metadata)


def _list_at_top(events: list[Event], findings: Findings) -> Document:
    """Return the document of a file that is a bare list of events, as old versions wrote it.

    Raises `msgspec.ValidationError` if none of the entries of the list is an event, which has a phase.
    """
    if not any(event.ph for event in events):
        raise msgspec.ValidationError("Expected `array` of events")
    findings[LIST_AT_TOP] = 1
    return Document(events)


def _events(entries: list[Any], findings: Findings) -> list[Event]:
    """Return the entries of a list that are objects as events, and count the others."""
    objects = [entry for entry in entries if isinstance(entry, dict)]
    findings[NO_EVENTS] += len(entries) - len(objects)
    return [_event(entry) for entry in objects]


def _event(entry: dict[str, Any]) -> Event:
    """Return an object of the file as an event, None for each field of an unexpected type."""
    return Event(
        ph=_text(entry.get("ph")),
        cat=_text(entry.get("cat")),
        name=scalar(entry.get("name")),
        pid=scalar(entry.get("pid")),
        tid=scalar(entry.get("tid")),
        ts=scalar(entry.get("ts")),
        dur=scalar(entry.get("dur")),
        args=_arguments(entry.get("args")),
    )


def _arguments(entry: Any) -> Arguments:
    if not isinstance(entry, dict):
        return NO_ARGUMENTS
    arguments: dict[str, Scalar] = {}
    for field, name_in_file in zip(Arguments.__struct_fields__, Arguments.__struct_encode_fields__, strict=True):
        arguments[field] = scalar(entry.get(name_in_file))
    return Arguments(**arguments)


def _text(value: Any) -> str | None:
    text_or_number = scalar(value)
    return None if text_or_number is None else str(text_or_number)

"""Decode the JSON of a trace: its events, and what the file states about itself.

Decoding the events is most of the work of reading a trace, though most of them are then skipped or only counted. So a
sound file is decoded only once, into records with no more fields than are used. If that fails because the text is not
JSON, the text is repaired (`repair`). If it fails because a field has an unexpected type, the text is decoded into
plain dictionaries, and records are made of them one by one.
"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.trace.kineto.findings import LIST_AT_TOP, NO_EVENTS, Findings
from multicard.trace.kineto.repair import as_utf_8, repair
from multicard.trace.kineto.values import Scalar, scalar

_LIST = re.compile(rb"\s*\[")

# The type of a time. A file has it as a number or as a text, and `events.with_times` replaces texts by decimal numbers.
# Only type checkers may see that, because msgspec accepts no field that may hold a text or a decimal number.
if TYPE_CHECKING:
    Time = Scalar | Decimal
else:
    Time = Scalar


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event's `args` that are used."""

    correlation: Scalar = None
    device: Scalar = None
    stream: Scalar = None
    original_stream: Scalar = None
    queue: Scalar = msgspec.field(default=None, name="sycl queue")
    bytes: Scalar = None
    copy_kind: Scalar = msgspec.field(default=None, name="copy kind")
    source_kind: Scalar = msgspec.field(default=None, name="src kind")
    target_kind: Scalar = msgspec.field(default=None, name="dst kind")
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

    `ph`: its phase, such as "X" for a complete event, or "B" and "E" for the begin and the end of an event. `cat`: its
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
    host_name: Any = None


def decode(text: bytes, findings: Findings) -> Document:
    """Return the document that a text holds; a text that is not JSON is repaired first.

    Raises `msgspec.DecodeError` if the text is not JSON and cannot be repaired. Raises `msgspec.ValidationError` if it
    has no list of events.
    """
    try:
        return _decode(text, findings)
    except msgspec.ValidationError:
        # The text is JSON, but a field has another type than it should. To be decoded into plain values, all of it must
        # be UTF-8. Decoding into records did not check that, because it skips fields that are not used.
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
    """Return a document made of dictionaries and lists; a value of an unexpected type counts as missing.

    Raises `msgspec.ValidationError` if there is no list of events.
    """
    if isinstance(plain, list):
        return _list_at_top(_events(plain, findings), findings)
    if not isinstance(plain, dict) or not isinstance(plain.get("traceEvents"), list):
        raise msgspec.ValidationError("Expected `object` with an `array` traceEvents")
    names = [name for name in Document.__struct_fields__ if name != "traceEvents"]
    metadata = {name: plain[name] for name in names if name in plain}
    return Document(_events(plain["traceEvents"], findings), **metadata)


def _list_at_top(events: list[Event], findings: Findings) -> Document:
    """Return the document of a file that is a bare list of events, as old versions wrote it.

    Raises `msgspec.ValidationError` if none of the entries of the list has a phase, which every event has.
    """
    if not any(event.ph for event in events):
        raise msgspec.ValidationError("Expected `array` of events")
    findings[LIST_AT_TOP] = 1
    return Document(events)


# An event of a file that was decoded into plain values, in the format of Chrome's "Trace Event Format".
_PlainEvent = dict[str, Any]


def _events(entries: list[Any], findings: Findings) -> list[Event]:
    """Return the objects in a list as events, and count all other entries as a finding."""
    objects = [entry for entry in entries if isinstance(entry, dict)]
    findings[NO_EVENTS] += len(entries) - len(objects)
    return [_event(entry) for entry in objects]


def _event(entry: _PlainEvent) -> Event:
    """Return an object of the file as an event. A field of an unexpected type is None.

    A missing field has the default value of `Event`, as if the text had been decoded into records. If the arguments are
    missing, or have an unexpected type, they are `NO_ARGUMENTS`.
    """
    return Event(
        ph=_text(entry.get("ph")),
        cat=_text(entry.get("cat")),
        name=scalar(entry.get("name", "")),
        pid=scalar(entry.get("pid")),
        tid=scalar(entry.get("tid")),
        ts=scalar(entry.get("ts")),
        dur=scalar(entry.get("dur", 0)),
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

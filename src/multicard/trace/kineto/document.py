"""The JSON of a trace: its events, and what it says of itself.

Most events of a trace are skipped or counted only, and decoding them is most of the work of reading it. So a sound file
is decoded once, into records that have no more than what is used. Only what does not decode is repaired (`repair`), or
decoded into plain dictionaries that are taken for records entry by entry.
"""

import re
from typing import Any

import msgspec

from multicard.trace.kineto.findings import LIST_AT_TOP, NO_EVENTS, Findings
from multicard.trace.kineto.repair import as_utf_8, repair
from multicard.trace.kineto.values import Scalar

_LIST = re.compile(rb"\s*\[")


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's `args`."""

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
    """What is used of an event."""

    ph: str | None = None
    cat: str | None = None
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = 0
    args: Arguments | None = NO_ARGUMENTS


class Document(msgspec.Struct):
    """What is used of a file."""

    traceEvents: list[Event]  # noqa: N815, the name in the file
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    traceName: Any = None  # noqa: N815
    hostname: Any = None


def decode(text: bytes, findings: Findings) -> Document:
    """Return what a text says, repaired where it can be.

    Raises `msgspec.DecodeError` if the text is not JSON. Raises `msgspec.ValidationError` if it has no list of events.
    """
    try:
        return _decode(text, findings)
    except msgspec.ValidationError:
        # Something in it has another type than it should.
        return _from_plain(msgspec.json.decode(as_utf_8(text, findings)), findings)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = repair(text, findings)
    try:
        return _decode(text, findings)
    except msgspec.ValidationError:
        return _from_plain(msgspec.json.decode(text), findings)


def _decode(text: bytes, findings: Findings) -> Document:
    if not _LIST.match(text):
        return msgspec.json.decode(text, type=Document)
    document = Document(msgspec.json.decode(text, type=list[Event]))
    _require_events(document.traceEvents)
    findings[LIST_AT_TOP] = 1
    return document


def _from_plain(plain: Any, findings: Findings) -> Document:
    """Return what a decoded text says; what has an unexpected type counts as missing."""
    if isinstance(plain, list):
        document = Document(_events(plain, findings))
        _require_events(document.traceEvents)
        findings[LIST_AT_TOP] = 1
        return document
    if not isinstance(plain, dict) or not isinstance(plain.get("traceEvents"), list):
        raise msgspec.ValidationError("Expected `object` with an `array` traceEvents")
    others = {name: plain[name] for name in Document.__struct_fields__ if name in plain and name != "traceEvents"}
    return Document(_events(plain["traceEvents"], findings), **others)


def _require_events(entries: list[Event]) -> None:
    """Raise `msgspec.ValidationError` unless a list at the top, which may be of anything, is of events."""
    if not any(event.ph for event in entries):
        raise msgspec.ValidationError("Expected `array` of events")


def _events(entries: list[Any], findings: Findings) -> list[Event]:
    events = [_event(entry) for entry in entries if isinstance(entry, dict)]
    if len(events) < len(entries):
        findings[NO_EVENTS] += len(entries) - len(events)
    return events


def _event(entry: dict[str, Any]) -> Event:
    texts = {name: _scalar(entry.get(name)) for name in ("ph", "cat")}
    others = {name: _scalar(entry.get(name)) for name in ("name", "pid", "tid", "ts", "dur")}
    arguments = entry.get("args")
    if isinstance(arguments, dict):
        known = {
            field: _scalar(arguments.get(name))
            for field, name in zip(Arguments.__struct_fields__, Arguments.__struct_encode_fields__, strict=True)
        }
        own = Arguments(**known)
    else:
        own = NO_ARGUMENTS
    return Event(**{name: None if text is None else str(text) for name, text in texts.items()}, **others, args=own)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None

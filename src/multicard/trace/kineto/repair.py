r"""Repair JSON that is almost JSON, as profilers and their users leave it.

Each repair is for damage that public reports describe: Kineto wrote names and metadata without escaping them (paths of
Windows, line ends, quotes), wrote C++'s `inf` and `-nan` as numbers, and forgot or doubled commas. Disks filled up, and
people cut files to a size that they can send. All repairs take time in proportion to the text. They repair the place
where the parser stopped, or look for what sound JSON never has, so they do not change what is sound.

>>> from collections import Counter
>>> findings = Counter()
>>> repair(rb'{"traceEvents": [{"name": "C:\cuda", "dur": inf}, {"na', findings)
b'{"traceEvents": [{"name": "C:\\\\cuda", "dur": null}]}'
>>> [(count, finding.noun) for finding, count in findings.items()]
[(1, 'backslash'), (1, 'number'), (1, None)]
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from multicard.trace.kineto.findings import (
    BACKSLASHES,
    BYTE_ORDER_MARK,
    COMMAS,
    CONTROL_CHARACTERS,
    CUT,
    HEAD_LOST,
    NO_NUMBERS,
    NO_UTF_8,
    QUOTES,
    TRAILING,
    Finding,
    Findings,
)

# To find the last whole event of a text that was cut, at most this many closing braces before the cut are tried. Each
# try parses the text. An event has few braces, so a few tries are enough.
MOST_BRACES_BEFORE_A_CUT = 20

_MARK = b"\xef\xbb\xbf"
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|())')
_NO_NUMBER = re.compile(rb'(":\s*|[\[,]\s*)[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?|n/a)(?=\s*[,}\]])', re.IGNORECASE)
_CONTROL_TO_BLANK = bytes.maketrans(bytes(range(32)), b" " * 32)
_EXTRA_COMMA = re.compile(rb",(?=\s*[,}\]])")
_LEADING_COMMA = re.compile(rb"([\[{]\s*),")
_NO_VALUE = re.compile(rb":(?=\s*[,}\]])")
_NAME = re.compile(rb'"name"\s*:\s*"')
_AFTER_NAME = re.compile(rb'"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
# A quote that neither follows what a text may follow, nor is followed by what may follow a text.
_INNER_QUOTE = re.compile(rb'([^\s{\[,:\\]\s*)"(?!\s*(?:[,:}\]]|$))')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_ERROR_OFFSET = re.compile(r"\(byte (\d+)\)")


@dataclass(frozen=True)
class _Stop:
    """Where and why the parser stopped.

    `offset`: that of the byte that the parser did not expect, -1 if the text ended too early. `byte`: the byte at that
    offset, empty if the text ended too early.
    """

    error: msgspec.DecodeError
    offset: int
    byte: bytes


# A repair takes a text, and where the parser stopped in it. It returns the repaired text, and how many places it
# repaired, or the text as it was and 0.
_Repair = Callable[[bytes, _Stop], tuple[bytes, int]]


def repair(text: bytes, findings: Findings) -> bytes:
    """Return a text as sound JSON, and add to the findings what was repaired.

    Raises `msgspec.DecodeError` if it cannot be repaired.
    """
    text = as_utf_8(text, findings)
    if text.startswith(_MARK):
        findings[BYTE_ORDER_MARK] += 1
        text = text[len(_MARK) :]
    while stop := _parse(text):
        for finding, apply in _REPAIRS:
            repaired, count = apply(text, stop)
            if count:
                findings[finding] += count
                text = repaired
                break
        else:
            raise stop.error
    return text


def as_utf_8(text: bytes, findings: Findings) -> bytes:
    """Return a text in UTF-8: a replacement character takes the place of bytes that are not, such as names in Latin-1.

    The replaced characters are counted as a finding.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        replaced = text.decode(errors="replace").encode()
        findings[NO_UTF_8] += replaced.count("\ufffd".encode()) - text.count("\ufffd".encode())
        return replaced
    return text


def _parse(text: bytes) -> _Stop | None:
    """Return where a parser of JSON stops in a text; None if it reads all of the text."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        match = _ERROR_OFFSET.search(str(error))
        offset = int(match[1]) if match else -1
        return _Stop(error, offset, text[offset : offset + 1])
    return None


def _cut(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Close the list of events after the last whole event of a text that ends too early."""
    if stop.offset >= 0:
        return text, 0
    closing = b"]" if text.lstrip().startswith(b"[") else b"]}"
    end = len(text)
    for _ in range(MOST_BRACES_BEFORE_A_CUT):
        end = text.rfind(b"}", 0, end)
        if end < 0:
            break
        whole = text[: end + 1] + closing
        if _parse(whole) is None:
            return whole, 1
    return text, 0


def _backslashes(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Double the backslashes that begin no escape."""
    count = 0

    def escaped(match: re.Match[bytes]) -> bytes:
        nonlocal count
        # The group is part of the match only where no escape follows the backslash.
        if match[1] is None:
            return match[0]
        count += 1
        return rb"\\"

    return _ESCAPE.sub(escaped, text), count


def _no_numbers(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Replace by null what C++ and Python write for infinite and unknown numbers."""
    return _NO_NUMBER.subn(rb"\1null", text)


def _control_characters(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Replace all control characters by blanks if the parser stopped at a control character.

    Between texts this changes nothing, because blanks mean the same as line ends and tabs there.
    """
    if not b"" < stop.byte < b" ":
        return text, 0
    return text.translate(_CONTROL_TO_BLANK), 1


def _commas(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Remove commas that separate nothing, and insert null for missing values, if the parser stopped at either."""
    if stop.byte not in (b",", b"]", b"}"):
        return text, 0
    text, extra = _EXTRA_COMMA.subn(b"", text)
    text, leading = _LEADING_COMMA.subn(rb"\1", text)
    text, missing = _NO_VALUE.subn(b":null", text)
    return text, extra + leading + missing


def _quotes_in_names(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Escape quotes in the names of events, such as those of code that was generated from a dictionary.

    A name ends before the next field that an event may have.
    """
    pieces: list[bytes] = []
    copied = 0
    count = 0
    ends = _AFTER_NAME.finditer(text)
    end = next(ends, None)
    for begin in _NAME.finditer(text):
        while end and end.start() < begin.end():
            end = next(ends, None)
        if end is None:
            break
        name = text[begin.end() : end.start()]
        # If the name is the last field of its event, the next end belongs to another event.
        is_of_other_event = b'"ph"' in name or b'"name"' in name
        if begin.end() < copied or is_of_other_event:
            continue
        escaped, quotes = _BARE_QUOTE.subn(rb'\\"', name)
        if quotes:
            pieces += [text[copied : begin.end()], escaped]
            copied = end.start()
            count += quotes
    return b"".join([*pieces, text[copied:]]), count


def _quotes(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Escape quotes that neither begin nor end a text."""
    return _INNER_QUOTE.subn(rb'\1\\"', text)


def _trailing(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Leave out what follows the end of the JSON, such as the rest of a longer file that was written over."""
    if "trailing characters" not in str(stop.error):
        return text, 0
    # For this error the parser gives the offset after the first byte that it did not expect.
    return text[: stop.offset - 1], 1


def _head(text: bytes, stop: _Stop) -> tuple[bytes, int]:
    """Leave out what stands before the list of events if the parser stopped there."""
    events = _EVENTS.search(text)
    if events is None or not 1 < stop.offset < events.start():
        return text, 0
    return b"{" + text[events.start() :], 1


# Repairs are tried in this order: those that cannot be wrong come first. After a repair that changed something, the
# text is parsed again. No repair finds the same damage twice, so this ends.
_REPAIRS: tuple[tuple[Finding, _Repair], ...] = (
    (CUT, _cut),
    (BACKSLASHES, _backslashes),
    (NO_NUMBERS, _no_numbers),
    (CONTROL_CHARACTERS, _control_characters),
    (TRAILING, _trailing),
    (COMMAS, _commas),
    (QUOTES, _quotes_in_names),
    (QUOTES, _quotes),
    (HEAD_LOST, _head),
)

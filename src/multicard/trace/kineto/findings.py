"""Damage and oddities that reading a trace of PyTorch's profiler finds in its file, each with the words for it."""

from collections import Counter
from dataclasses import dataclass

from multicard.core.text import counted


# Findings are compared by identity, because comparing their texts would take long: some are counted once for each of
# millions of events.
@dataclass(frozen=True, eq=False)
class Finding:
    """A kind of damage or oddity that was set right.

    `words` and `noun` make a notice: "3 numbers read as unknown: …". `noun` is None for a finding about the whole file.
    """

    words: str
    noun: str | None = None


GZIPPED = Finding("gzipped, though its name does not end in .gz")
NOT_GZIPPED = Finding("not gzipped, though its name ends in .gz")
CUT = Finding("cut, or never finished: its events were read up to there")
BYTE_ORDER_MARK = Finding("begins with a byte order mark, which is no part of JSON")
TRAILING = Finding("what follows the end of its JSON was left out")
HEAD_LOST = Finding("what stands before its events is damaged and was left out, so rank and GPUs may be unknown")
LIST_AT_TOP = Finding("a bare list of events, so rank and GPUs are unknown")
CONTROL_CHARACTERS = Finding("control characters inside of texts were read as blanks")

BACKSLASHES = Finding("taken literally: no escape of JSON", "backslash")
NO_NUMBERS = Finding("read as unknown: inf, nan, N/A or the like", "number")
COMMAS = Finding("corrected: a comma too many or a value too few", "place")
QUOTES = Finding("inside of texts read as part of them", "quote")
NO_UTF_8 = Finding("replaced: not UTF-8", "character")
NO_EVENTS = Finding("of its list left out: no event", "element")
TEXT_TIMES = Finding("read from texts", "time")
NO_TIMES = Finding("left out: no time", "event")
NO_DURATIONS = Finding("read as 0: no number", "duration")
PAIRS = Finding("put together from begin and end", "event")
UNPAIRED = Finding("left out: a begin without an end, or an end without a begin", "event")
TOO_LARGE = Finding("read as unknown: more than 64 bits", "number")
NO_DEVICE = Finding("on an unknown device: args.device is no whole number of 64 bits", "event")
NO_RANK = Finding("its rank is unknown: distributedInfo.rank is no whole number of 64 bits")

# The number of times that each finding was made in one file.
Findings = Counter[Finding]


def notices(name: str, findings: Findings) -> tuple[str, ...]:
    """Return one line for each finding about the file `name`.

    >>> notices("rank0.json", Counter({NO_NUMBERS: 3, CUT: 1}))[0]
    'rank0.json: 3 numbers read as unknown: inf, nan, N/A or the like'
    """
    return tuple(
        f"{name}: {counted(count, finding.noun)} {finding.words}" if finding.noun else f"{name}: {finding.words}"
        for finding, count in findings.items()
        if count
    )

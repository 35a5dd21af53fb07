"""Facts that a process reports to the process that started it, as lines of JSON among other output."""

import json
import sys
from dataclasses import dataclass
from typing import Any

MARK = "multicard-fact: "

# Names of facts and their values, as parsed from JSON. Who starts a process makes a record of what it reports.
Facts = dict[str, Any]


@dataclass(frozen=True)
class ParsedLine:
    """A line that a process printed: the text before its first fact, and its facts."""

    text: str
    facts: list[Facts]


def print_fact(**fact: Any) -> None:
    """Print a fact as one line, in a single write, so that lines of ranks that share a pipe are rarely mixed."""
    sys.stdout.write(f"{MARK}{json.dumps(fact)}\n")
    sys.stdout.flush()


def parse_line(line: str) -> ParsedLine:
    """Return the text before the first fact of a line, and the line's facts.

    A line has several facts if those of two ranks were mixed. Text after a fact, and an incomplete fact, are left out:

    >>> parse_line(f'noise{MARK}{{"a": 1}}{MARK}{{"b": 2}}{MARK}{{"c"')
    ParsedLine(text='noise', facts=[{'a': 1}, {'b': 2}])
    """
    text, *parts = line.split(MARK)
    facts = []
    for part in parts:
        try:
            fact, _ = json.JSONDecoder().raw_decode(part)
        except ValueError:
            # The rest of this fact is in another line, or was lost.
            continue
        facts.append(fact)
    return ParsedLine(text, facts)

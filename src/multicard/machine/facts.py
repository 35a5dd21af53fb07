"""Facts that a process reports to the one that started it: lines of JSON among whatever else it prints."""

import json
import sys
from dataclasses import dataclass
from typing import Any

MARK = "multicard-fact: "

# Names of facts and their values.
Facts = dict[str, Any]


@dataclass(frozen=True)
class ParsedLine:
    """A line that a process printed: its text without facts, and its facts."""

    text: str
    facts: list[Facts]


def print_fact(**fact: Any) -> None:
    """Print a fact as a line, in one piece: the ranks of a job all write to one pipe."""
    sys.stdout.write(f"{MARK}{json.dumps(fact)}\n")
    sys.stdout.flush()


def parse_line(line: str) -> ParsedLine:
    """Return the text and the facts of a line: several facts where the lines of two ranks are mixed, none in part.

    >>> parse_line(f'noise{MARK}{{"a": 1}}{MARK}{{"b": 2}}{MARK}{{"c"')
    ParsedLine(text='noise', facts=[{'a': 1}, {'b': 2}])
    """
    text, *parts = line.split(MARK)
    facts = []
    for part in parts:
        try:
            fact, _ = json.JSONDecoder().raw_decode(part)
        except ValueError:
            # The end of the fact is in another line, or lost.
            continue
        facts.append(fact)
    return ParsedLine(text, facts)

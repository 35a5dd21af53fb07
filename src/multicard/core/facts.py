"""Facts that a process tells the one that started it: lines of JSON among whatever else it prints."""

import json
import sys
from typing import Any

MARK = "multicard-fact: "


def tell(**fact: Any) -> None:
    """Print a fact, in one piece: the ranks of a job all write to one pipe."""
    sys.stdout.write(f"{MARK}{json.dumps(fact)}\n")
    sys.stdout.flush()


def told(line: str) -> tuple[str, list[dict[str, Any]]]:
    """What a line says besides facts, and its facts: several where the lines of two ranks are mixed, none in part.

    >>> told(f'noise{MARK}{{"a": 1}}{MARK}{{"b": 2}}{MARK}{{"c"')
    ('noise', [{'a': 1}, {'b': 2}])
    """
    first, *parts = line.split(MARK)
    facts = []
    for part in parts:
        try:
            facts.append(json.JSONDecoder().raw_decode(part)[0])
        except ValueError:  # the rest is in another line, or lost
            continue
    return first, facts

"""Whether a machine is ready for an experiment (doctor), and what it can do at most, measured (limits)."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """What was looked for, what was found, how that is judged, and what to do about it."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""

"""Check whether a machine is ready for an experiment (doctor), and measure its limits (limits)."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """A check of the machine: what was looked for, what was found, the verdict on it, and what to do about it."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""

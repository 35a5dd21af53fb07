"""Check whether a machine is ready for an experiment (doctor), and measure its limits (limits)."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """The result of a check of the machine: its name, what was found, the verdict, and what the user can do."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""

"""One line of what doctor finds."""

from dataclasses import dataclass
from typing import Literal

from multicard.core.system import Answer

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """What was looked for, what was found, how that is judged, and what to do about it."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""


def cannot_tell(check: str, answer: Answer, do: str = "", verdict: Verdict = "warning") -> Check:
    """Give the line for a tool that did not answer as it should."""
    return Check(check, f"cannot tell: {answer.problem or 'an answer that makes no sense'}", verdict, do)

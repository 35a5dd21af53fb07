"""One line of the doctor's table, and the facts about PyTorch that several checks need."""

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from multicard.core.facts import told
from multicard.core.system import Answer, ask

Verdict = Literal["ok", "warning", "error"]
TORCH_LIMIT_S = 120.0  # a first import from a shared file system takes long


@dataclass(frozen=True)
class Check:
    """What was looked for, what was found, how that is judged, and what to do about it."""

    check: str
    found: str
    verdict: Verdict = "ok"
    do: str = ""


def torch_facts() -> dict[str, Any]:
    """What PyTorch, NVML and DALI report of themselves; `torch_problem` where PyTorch cannot be imported.

    `unanswered`: which of the first two hung or ended the process that asked.
    """
    # Without warnings, which would be mixed with the answer.
    command = [sys.executable, "-W", "ignore", "-m", "multicard.doctor.probe"]
    answer = ask(command, TORCH_LIMIT_S, dict(os.environ))
    facts: dict[str, Any] = {}
    for line in answer.lines:
        for fact in told(line)[1]:
            facts |= fact
    if not facts.get("all"):
        said = (answer.problem or "no answer").replace(sys.executable, "python", 1)
        if facts.get("asking") == "dali":  # all others have answered
            facts["dali_problem"] = said
        else:
            facts["unanswered"] = f"{said}, asked for {facts['asking']}" if "asking" in facts else said
    if "torch" not in facts:
        facts["torch_problem"] = facts.get("import_torch_problem") or facts.get("unanswered", "no answer")
    return facts


def cannot_tell(check: str, answer: Answer, do: str = "") -> Check:
    """Give the line for a tool that did not answer as it should."""
    return Check(check, f"cannot tell: {answer.problem or 'an answer that makes no sense'}", "warning", do)

"""Measuring in processes of its own, under a time limit: what their ranks tell, in the order in which it came."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.core.facts import told
from multicard.core.system import ending
from multicard.launch.node_ranks import training_command
from multicard.launch.supervise import run
from multicard.launch.variables import inside_one_machine, job_environment

GRACE_S = 5.0


@dataclass(frozen=True)
class Told:
    """The lines of a job, each with its facts, and how the job ended."""

    lines: list[tuple[str, list[dict[str, Any]]]]
    exit_code: int
    timed_out: bool

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts of all lines."""
        return [fact for _, facts in self.lines for fact in facts]

    @property
    def ending(self) -> str:
        """How it ended, with its last line."""
        return ending(self.exit_code, [text for text, _ in self.lines])


def run_module(
    module: str, arguments: Sequence[object], limit_s: float, ranks: int = 0, more: dict[str, str] | None = None
) -> Told:
    """Run a module in a process of its own, or, with `ranks`, under torchrun; it is ended after `limit_s`.

    `more`: variables for its environment, beside those that a run's job gets.
    """
    lines: list[tuple[str, list[dict[str, Any]]]] = []
    command = training_command(module, [str(each) for each in arguments], ranks)
    with tempfile.TemporaryDirectory(prefix="multicard-machine-", ignore_cleanup_errors=True) as scratch:
        environment = inside_one_machine(job_environment(os.environ)) | {"PYTHONSAFEPATH": "1"} | (more or {})
        log = Path(scratch, "log.txt")
        ended = run(command, environment, log, limit_s, lambda line: lines.append(told(line)), GRACE_S)
    return Told(lines, ended.exit_code, ended.timed_out)

"""Run measurements in processes of their own, under a time limit, and collect what their ranks report."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.core.system import ending
from multicard.launch.node_ranks import training_command
from multicard.launch.supervise import run
from multicard.launch.variables import inside_one_machine, job_environment
from multicard.launch.watch import Limits
from multicard.machine.facts import Facts, ParsedLine, parse_line

# How long processes may take to end once the job has ended or was told to.
LIMITS = Limits(grace_s=5.0)


@dataclass(frozen=True)
class JobOutput:
    """The lines that a job printed, in the order in which they came, and how it ended."""

    lines: list[ParsedLine]
    exit_code: int
    timed_out: bool

    @property
    def facts(self) -> list[Facts]:
        """The facts of all lines."""
        return [fact for line in self.lines for fact in line.facts]

    @property
    def ending(self) -> str:
        """The end of the job in words, with its last line."""
        return ending(self.exit_code, [line.text for line in self.lines])


def run_module(
    module: str, arguments: Sequence[object], limit_s: float, ranks: int = 0, variables: dict[str, str] | None = None
) -> JobOutput:
    """Run a module in a process of its own, or in `ranks` processes under torchrun; end it after `limit_s`.

    `variables`: for its environment, beside those that a run's job gets.
    """
    lines: list[ParsedLine] = []
    command = training_command(module, [str(argument) for argument in arguments], ranks)
    environment = inside_one_machine(job_environment(os.environ))
    environment |= {"PYTHONSAFEPATH": "1"} | (variables or {})
    with tempfile.TemporaryDirectory(prefix="multicard-machine-", ignore_cleanup_errors=True) as scratch:
        log = Path(scratch, "log.txt")
        ended = run(command, environment, log, limit_s, lambda line: lines.append(parse_line(line)), limits=LIMITS)
    return JobOutput(lines, ended.exit_code, ended.timed_out)

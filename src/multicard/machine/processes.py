"""Run a measurement in its own processes, under a time limit, and collect the facts that they report."""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.core.rendezvous import torchrun_options
from multicard.core.system import ending
from multicard.launch.supervise import run
from multicard.launch.variables import inside_one_machine, job_environment
from multicard.launch.watch import Limits
from multicard.machine.facts import Facts, ParsedLine, parse_line

# Processes that are left get SIGTERM, and SIGKILL so many seconds later.
LIMITS = Limits(grace_s=5.0)


@dataclass(frozen=True)
class JobOutput:
    """The lines that a job printed, in the order in which they were read, and how the job ended."""

    lines: list[ParsedLine]
    exit_code: int
    timed_out: bool

    @property
    def facts(self) -> list[Facts]:
        """The facts of all lines, in the order in which they were read."""
        return [fact for line in self.lines for fact in line.facts]

    @property
    def ending(self) -> str:
        """The end of the job in words: its exit code and the last line that it printed."""
        return ending(self.exit_code, [line.text for line in self.lines])


def run_module(
    module: str, arguments: Sequence[object], limit_s: float, ranks: int = 0, variables: dict[str, str] | None = None
) -> JobOutput:
    """Run a module in one process, or if `ranks` is not 0 in so many processes under torchrun; return its output.

    `limit_s`: seconds after which it is ended. `variables`: environment variables, in addition to those that the job of
    a run gets.
    """
    lines: list[ParsedLine] = []
    torchrun = ["-m", "torch.distributed.run", *torchrun_options(ranks)] if ranks else []
    command = [sys.executable, *torchrun, "-m", module, *(str(argument) for argument in arguments)]
    environment = inside_one_machine(job_environment(os.environ))
    environment |= {"PYTHONSAFEPATH": "1"} | (variables or {})
    with tempfile.TemporaryDirectory(prefix="multicard-machine-", ignore_cleanup_errors=True) as scratch:
        log = Path(scratch, "log.txt")
        ended = run(command, environment, log, limit_s, lambda line: lines.append(parse_line(line)), limits=LIMITS)
    return JobOutput(lines, ended.exit_code, ended.timed_out)

"""Programs that start another module in the place of their own, for tests of what happens to a job."""

from dataclasses import replace
from typing import Any

from multicard.core.job_file import JobPaths
from multicard.programs import PROGRAMS
from multicard.programs.program import Program, RankCommand


def standing_in(module: str, name: str = "vision") -> Program[Any]:
    """The program `name`, whose ranks run `module` with the same options."""
    program = PROGRAMS[name]

    def command(p: Any, paths: JobPaths) -> RankCommand:
        own = program.command(p, paths)
        return replace(own, words=["-m", module, *own.words[2:]])

    return replace(program, command=command)

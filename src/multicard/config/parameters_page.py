"""The page about parameters, docs/parameters.md. It is made from the parameters and methods of the programs."""

import json
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from multicard.programs import PROGRAMS
from multicard.programs.program import Program
from multicard.runs.parameters import JobParameters

INTRODUCTION = """\
# Parameters

What a scenario can set under `fixed`, for all its runs, or list under `vary`. Parameters that are not set have their
defaults. Apart from the main parameters, a run's name contains only those that differ from their defaults, so adding a
parameter to multicard renames no run.
`python -m multicard.config --docs` prints this page; limits of numbers: `workflow/schemas/config.schema.json`.
"""


def page() -> str:
    """Return the page, in Markdown."""
    programs = list(PROGRAMS.values())
    shared = [name for name in JobParameters.model_fields if len({_row(program, name) for program in programs}) == 1]
    lines = [INTRODUCTION, "## All workloads\n", *_table(programs[0], shared)]
    for program in programs:
        lines += _section(program, shared)
    return "\n".join(lines)


def _section(program: Program[Any], shared: list[str]) -> Iterable[str]:
    """Yield the lines about a program. Its table leaves out the parameters that all programs share (`shared`)."""
    yield f"\n## Workload `{program.name}`\n"
    yield from _table(program, [name for name in program.parameters.model_fields if name not in shared])
    for name, method in program.methods.items():
        yield f"\n### {program.method.capitalize()} `{name}`\n"
        yield method.description[:1].upper() + method.description[1:]
        yield ""
        yield from (f"- {fact}" for fact in method.facts())


def _table(program: Program[Any], names: list[str]) -> list[str]:
    rows = [_row(program, name) for name in names]
    return ["| parameter | choices | default | meaning |", "|---|---|---|---|", *rows]


def _row(program: Program[Any], name: str) -> str:
    """Return the row of a parameter as Markdown; empty text if the program does not have it."""
    field = program.parameters.model_fields.get(name)
    if field is None:
        return ""
    return f"| `{name}` | {_choices(field)} | {_default(field)} | {field.description} |"


def _choices(field: FieldInfo) -> str:
    """Return the values between which a parameter chooses; empty text if it is not a choice."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    # A single choice is not shown: the parameter `workload` of a program has only the program's own name.
    return ", ".join(f"`{choice}`" for choice in choices) if len(choices) > 1 else ""


def _default(field: FieldInfo) -> str:
    """Return the default of a parameter; empty text if it has none."""
    if field.is_required():
        return ""
    # As in YAML: text without quotes, and null for None.
    default = field.default if isinstance(field.default, str) else json.dumps(field.default, default=str)
    return f"`{default}`"

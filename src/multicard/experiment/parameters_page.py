"""The page about parameters, docs/parameters.md. It is made from the parameters and methods of the workloads."""

import json
from collections.abc import Iterable
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from multicard.experiment.workload import WORKLOADS, Workload
from multicard.runs.parameters import JobParameters

INTRODUCTION = """\
# Parameters

What a scenario can set under `fixed`, for all its runs, or list under `vary`. Parameters that are not set have their
defaults. Apart from the main parameters, a run's name contains only those that differ from their defaults, so adding a
parameter to multicard renames no run.
`python -m multicard.experiment --docs` prints this page; limits of numbers: `workflow/schemas/config.schema.json`.
"""


def page() -> str:
    """Return the page, in Markdown."""
    launched = [work for work in WORKLOADS.values() if work.launches]
    shared = [name for name in JobParameters.model_fields if len({_row(work, name) for work in launched}) == 1]
    lines = [INTRODUCTION, "## Launched workloads\n", *_table(launched[0], shared)]
    for work in WORKLOADS.values():
        lines += _section(work, shared)
    return "\n".join(lines)


def _section(work: Workload, shared: list[str]) -> Iterable[str]:
    """Yield the lines about a workload.

    The table of a launched workload leaves out the parameters that all launched workloads share (`shared`). These have
    a table of their own.
    """
    yield f"\n## Workload `{work.name}`\n"
    yield from _table(work, [name for name in work.parameters.model_fields if name not in shared or not work.launches])
    for name, method in work.methods.items():
        yield f"\n### {work.method.capitalize()} `{name}`\n"
        yield method.description[:1].upper() + method.description[1:]
        yield ""
        yield from (f"- {fact}" for fact in method.facts())


def _table(work: Workload, names: list[str]) -> list[str]:
    rows = [_row(work, name) for name in names]
    return ["| parameter | choices | default | meaning |", "|---|---|---|---|", *rows]


def _row(work: Workload, name: str) -> str:
    """Return the row of a parameter as Markdown; empty text if the workload does not have it."""
    field = work.parameters.model_fields.get(name)
    if field is None:
        return ""
    return f"| `{name}` | {_choices(field)} | {_default(field)} | {field.description} |"


def _choices(field: FieldInfo) -> str:
    """Return the values between which a parameter chooses; empty text if it is not a choice."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    # A single choice is not shown: the parameter `workload` of a workload has only the workload's own name.
    return ", ".join(f"`{choice}`" for choice in choices) if len(choices) > 1 else ""


def _default(field: FieldInfo) -> str:
    """Return the default of a parameter; empty text if it has none."""
    if field.is_required():
        return ""
    # As in YAML: text without quotes, and null for None.
    default = field.default if isinstance(field.default, str) else json.dumps(field.default, default=str)
    return f"`{default}`"

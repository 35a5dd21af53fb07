"""The page about parameters, from the workloads' entries."""

import json
from typing import Literal, get_args, get_origin

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
    """The page, in Markdown."""
    jobs = [work for work in WORKLOADS.values() if work.launches]
    shared = [name for name in JobParameters.model_fields if len({_row(work, name) for work in jobs}) == 1]
    parts = [INTRODUCTION, "## Launched workloads\n", *_table(jobs[0], shared)]
    for work in WORKLOADS.values():
        own = [name for name in work.parameters.model_fields if name not in shared or not work.launches]
        parts += [f"\n## Workload `{work.name}`\n", *_table(work, own)]
        for name, entry in work.methods.items():
            description = entry.description[:1].upper() + entry.description[1:]
            parts += [f"\n### {work.method.capitalize()} `{name}`\n", description, ""]
            parts += [f"- {fact}" for fact in entry.facts()]
    return "\n".join(parts)


def _table(work: Workload, names: list[str]) -> list[str]:
    return ["| parameter | choices | default | meaning |", "|---|---|---|---|", *(_row(work, name) for name in names)]


def _row(work: Workload, name: str) -> str:
    if name not in work.parameters.model_fields:
        return ""
    field = work.parameters.model_fields[name]
    stated = field.default if isinstance(field.default, str) else json.dumps(field.default, default=str)
    default = "" if field.is_required() else f"`{stated}`"
    known = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    choices = ", ".join(f"`{each}`" for each in known) if len(known) > 1 else ""
    return f"| `{name}` | {choices} | {default} | {field.description} |"

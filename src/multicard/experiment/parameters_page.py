"""The page about parameters, from the workloads' entries."""

from collections.abc import Iterable, Sequence
from typing import Any

from multicard.experiment.parameters import JobParameters
from multicard.experiment.workload import WORKLOADS, Workload

INTRODUCTION = """\
# Parameters

What a scenario can set under `fixed`, for all its runs, or list under `vary`. Parameters that are not set have their
defaults. Apart from the main parameters, a run's name contains only those that differ from their defaults, so adding a
parameter to multicard renames no run.
`python -m multicard.experiment --docs` prints this page.
"""


def page() -> str:
    """The page, in Markdown."""
    works = WORKLOADS.values()
    jobs = [work for work in works if work.launches]
    shared = [name for name in JobParameters.model_fields if len({_row(work, name) for work in jobs}) == 1]
    first = next(iter(works))
    parts = [INTRODUCTION, "## Launched workloads\n", _table(_row(first, name) for name in shared)]
    for work in works:
        own = [name for name in work.parameters.model_fields if name not in shared or not work.launches]
        parts += [f"## Workload `{work.name}`\n", _table(_row(work, name) for name in own)]
        for name, entry in work.methods.items():
            parts += [f"### {work.method.capitalize()} `{name}`\n", _sentence(entry.description), ""]
            parts += [*(f"- {fact}" for fact in entry.facts()), ""]
    return "\n".join(parts).rstrip()


def _row(work: Workload, name: str) -> tuple[str, ...]:
    """Cells of a parameter: name, values, default, meaning; none where the workload does not have it."""
    if name not in work.parameters.model_fields:
        return ()
    field = work.parameters.model_fields[name]
    schema = work.parameters.model_json_schema()["properties"][name]
    meaning = "See below." if name == work.method and work.methods else field.description
    return (f"`{name}`", _values(schema), f"`{_yaml(field.default)}`" if not field.is_required() else "", meaning)


def _values(schema: dict[str, Any]) -> str:
    """Which values a schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(map(_values, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "name"}
    kind |= {"array": "list of text", "object": "values by name"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = [f"{sign} {schema[key]}" for key, sign in bounds.items() if key in schema]
    return " ".join([kind.get(schema["type"], f"`{schema['type']}`"), ", ".join(limits)]).strip()


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return str(list(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = ["| parameter | values | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])

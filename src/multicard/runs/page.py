"""The documentation page about run.json. It is made from the fields of `RunRecord`."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from multicard.core.reasons import Reason
from multicard.core.sharing import (
    AS_IT_IS,
    PRIVATE,
    Beginning,
    ByKey,
    ErrorText,
    Form,
    Numbered,
    OwnText,
    Remark,
    Rule,
    Words,
)
from multicard.runs.record import RecordPart, RunRecord

HEAD = """# The record: run.json

The launcher writes it when a job has ended; a folder without it is incomplete. A key that is absent or null was not
recorded, or has been left out by an [archive](comparing.md). Units are at the end of names: `_s` seconds,
`_bytes` bytes, `_w` watts, `_j` joules, `_mhz` megahertz, `_c` degrees Celsius.
"""

# What an archive holds of the text of a field, by the field's rule (`multicard.core.sharing`).
IN_ARCHIVES: dict[type[Rule], str] = {
    Words: "known words",
    Form: "if it has the expected form",
    Beginning: "the part of the expected form",
    ByKey: "the part of the expected form",
    Remark: "only that there is one",
    Numbered: "a number in its place",
    OwnText: "without places, secrets and machines",
    ErrorText: "the kind of the error",
}


def page() -> str:
    """Return the page as Markdown: a table of the record's keys, then a section for each kind of part."""
    sections = [HEAD, *_table(RunRecord)]
    for part in _parts(RunRecord):
        sections += [f"\n## {_heading(part)}\n", f"{_sentence(part)}\n", *_table(part)]
    return "\n".join(sections) + "\n"


def _parts(record: type[RecordPart]) -> list[type[RecordPart]]:
    """Return the classes of the parts of a record, and of their parts, each once, in the order of first appearance."""
    parts: dict[type[RecordPart], None] = {}
    for field in record.model_fields.values():
        for part in _types_in(field.annotation):
            if isinstance(part, type) and issubclass(part, RecordPart) and part not in parts:
                parts[part] = None
                parts |= dict.fromkeys(_parts(part))
    return list(parts)


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types inside an annotation: `int` and `None` for `tuple[int, ...] | None`, with `...` between them."""
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    for argument in arguments:
        yield from _types_in(argument)


def _table(part: type[RecordPart]) -> list[str]:
    """Return the lines of the table of a part's keys."""
    rows = [f"| `{name}` | {_content(field)} | {_in_archives(field)} |" for name, field in part.model_fields.items()]
    return ["| key | content | in archives |", "|---|---|---|", *rows]


def _content(field: FieldInfo) -> str:
    """Return the description of a field, and links to the tables of the parts that it holds."""
    text = field.description or ""
    parts = [part for part in _types_in(field.annotation) if isinstance(part, type) and issubclass(part, RecordPart)]
    links = [f"[keys](#{_heading(part).lower().replace(' ', '-')})" for part in parts]
    return " ".join([text, *links])


def _in_archives(field: FieldInfo) -> str:
    """Return what an archive holds of a field: "yes" for all of it, "no" for nothing, else as `IN_ARCHIVES` states."""
    types = set(_types_in(field.annotation))
    if PRIVATE in field.metadata:
        return "no"
    if AS_IT_IS in field.metadata or str not in types or Reason in types:
        return "yes"
    rule = next((rule for rule in field.metadata if isinstance(rule, Rule)), None)
    return "no" if rule is None else IN_ARCHIVES[type(rule)]


def _heading(part: type[RecordPart]) -> str:
    """Return the name of a part's class in words: "Gpu state" for `GpuState`."""
    name = part.__name__.removesuffix("Record")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.strip().capitalize()


def _sentence(part: type[RecordPart]) -> str:
    """Return the docstring of a part's class in one line."""
    return " ".join((part.__doc__ or "").split())

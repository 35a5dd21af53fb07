"""The documentation page about measures.csv. It is made from the definitions of its columns."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from multicard.answers.scaling.speedup_tables import SCALING
from multicard.programs import PROGRAMS
from multicard.runs.measures import ABOUT, Definition, Measures

HEAD = """# Measures: measures.csv

<!-- Made from the code: python -m multicard.answers > docs/measures.md -->

Each scenario has a file `measures.csv` with a row per run. Its columns are those [about the run](#about-the-run), then
all [parameters](parameters.md) of the workload, then the measures, and at last the [speed-up](#speed-up). A value that
was not recorded is empty, never zero. [How runs are measured](measuring.md) explains what the definitions are based
on; the measured and the profiled steps are those of the [windows](files.md#steps) with these names.
"""

COMMON_HEAD = """## All workloads

The columns from `compute_share` to `other_share` are the [parts of a step](step-time.md#parts-of-a-step), which add up
to 1. A part that was not recorded is empty.
"""


def page() -> str:
    """Return the page as Markdown: a table of all workloads' measures, then a section for each other set of columns."""
    common = {measure.name: measure.metadata["definition"] for measure in fields(Measures)}
    lines = [HEAD, COMMON_HEAD, *_table(common)]
    for name, program in PROGRAMS.items():
        own = {
            column: definition for column, definition in program.measures.definitions.items() if column not in common
        }
        lines += [f"\n## Workload `{name}`\n", *_table(own)]
    lines += ["\n## About the run\n", "These columns come first.\n", *_table(ABOUT)]
    lines += ["\n## Speed-up\n", "These columns come last.\n", *_table(SCALING)]
    return "\n".join(lines) + "\n"


def _table(definitions: Mapping[str, Definition]) -> Iterator[str]:
    """Yield the lines of the table of some columns."""
    yield "| column | unit | definition |"
    yield "|---|---|---|"
    for column, definition in definitions.items():
        yield f"| `{column}` | {definition.unit} | {definition.text} |"

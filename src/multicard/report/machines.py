"""The limits of machines, as the report shows them."""

from dataclasses import dataclass
from pathlib import Path

from multicard.analysis.machine.limits import Line, MachineLimits, lines, read_machine
from multicard.core.layout import machine_records
from multicard.report.environment import Facts, machine_facts
from multicard.report.results import FigureFiles, figure_files
from multicard.report.tables import Table, numbers_table


@dataclass(frozen=True)
class MachinePage:
    """The limits of one kind of device of a machine; `figure` is that of its all-reduces, None where there is none."""

    name: str
    facts: Facts
    lines: list[Line]
    notes: list[str]
    figure: FigureFiles | None
    files: str

    @property
    def numbers(self) -> Table:
        """Numbers of the figure."""
        return numbers_table(self.figure.numbers)


def machine_pages(results: Path) -> list[MachinePage]:
    """Give what a results folder holds of machines.

    Raises
    ------
    UserError
        If a record is damaged.
    """
    return [_page(path, read_machine(path)) for path in machine_records(results)]


def _page(path: Path, limits: MachineLimits) -> MachinePage:
    host = (limits.host or {}).get("name", "unknown host")
    facts = machine_facts({"host": limits.host, "hardware": limits.hardware})
    facts += [("Measured", limits.started)]
    facts += [("Versions", ", ".join(f"{name} {value}" for name, value in (limits.versions or {}).items() if value))]
    facts += [("Time of a measurement", f"{limits.seconds:g} s")]
    return MachinePage(
        name=f"{host}, {'GPUs' if limits.device == 'cuda' else 'CPUs'}",
        facts=facts,
        lines=lines(limits),
        notes=limits.notes,
        figure=figure_files(path.parent, path.parent.name, path.stem),
        files=f"machine/{path.stem}",
    )

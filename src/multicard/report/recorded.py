"""Links to the reports of results that were recorded elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from multicard.analysis.run_files import read_object
from multicard.analysis.scenario_tables import machine
from multicard.core.errors import UserError
from multicard.core.layout import RUN
from multicard.report.results import REPORT

FOLDER = "recorded"


@dataclass(frozen=True)
class RecordedPage:
    """A page of recorded results: its name, the machines that they are from, and where it is, as a link."""

    name: str
    machines: str
    link: str


def recorded_pages(results: Path, names: Sequence[str]) -> list[RecordedPage]:
    """Give the pages of these names in the folder `recorded` of a results folder.

    Raises
    ------
    UserError
        If one is not there, or a record of it cannot be read.
    """
    return [_page(results / FOLDER / name) for name in names]


def _page(folder: Path) -> RecordedPage:
    if not (folder / REPORT).is_file():
        raise UserError(f"{folder / REPORT}: missing")
    found = {}
    for path in sorted(folder.glob(f"runs/*/{RUN}")):
        hardware = read_object(path).get("hardware")
        if hardware:
            found[machine(hardware)] = None
    link = quote(f"{FOLDER}/{folder.name}/{REPORT}")
    return RecordedPage(folder.name, "; ".join(found) or "machine not recorded", link)

"""Note which configuration a report is of, so that another configuration does not replace it without a word."""

from pathlib import Path

from multicard.core.files import atomic_write
from multicard.core.system import read_or_none
from multicard.core.text import printable

REPORT = "report.html"
# File in the results with the path of the configuration file that the report there is of.
NOTE = Path("logs", "configuration.txt")


def stated_path(configuration: Path, here: Path) -> str:
    """Return a path as seen from the folder `here`, if it is below that, else the absolute path.

    >>> stated_path(Path("/a/config/mine.yaml"), Path("/a")), stated_path(Path("mine.yaml"), Path("/a"))
    ('config/mine.yaml', 'mine.yaml')
    """
    absolute = here / configuration
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def note_source(results: Path, configuration: str) -> None:
    """Note that the report in a results folder is of a configuration; `configuration`: a path of `stated_path`."""
    file = results / NOTE
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as temporary:
        temporary.write_text(f"{configuration}\n", encoding="utf-8")


def replacement(results: Path, configuration: str) -> str | None:
    """Return a line that the report in a results folder, of another configuration, is about to be replaced.

    None if there is no report, if it is of the configuration itself, or if it is not known what it is of.
    """
    noted = read_or_none(lambda: (results / NOTE).read_text(encoding="utf-8"))
    source = printable(noted.strip()) if noted else ""
    if not source or source == configuration or not (results / REPORT).exists():
        return None
    return (
        f"{results / REPORT} is of {source}, and that of {configuration} replaces it, with figures and tables of equal "
        f"name; runs stay. To keep both, state another folder as results in {configuration}"
    )

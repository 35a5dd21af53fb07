"""What the report and the conclusions of an experiment replace.

Nothing of the user's is replaced (`refuse_own_files`). A report of another configuration is not replaced without a word
(`replacement`), for which each results folder has a note of the configuration that its report is of.
"""

from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.layout import CLAIM_TESTS, CLAIMS, RECOMMENDATIONS
from multicard.core.system import read_or_none
from multicard.core.text import printable

REPORT = "report.html"
# File in the results with the path of the configuration file that the report there is of.
NOTE = Path("logs", "configuration.txt")
# How files begin that multicard wrote to the top of a results folder; the report has its title in the first lines.
BEGINNINGS = {
    REPORT: "<!DOCTYPE html>",
    RECOMMENDATIONS: "# Recommendations\n",
    CLAIMS: "claim,verdict,",
    CLAIM_TESTS: "claim,test,",
}
REPORT_TITLE = "<title>multicard:"
# Characters of a file that show who wrote it.
SHOWN = 2000


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


def refuse_own_files(results: Path, configuration: str) -> None:
    """Raise `UserError` if a file that the report or the conclusions would replace does not look like multicard's.

    `configuration`: a path of `stated_path`, for the message.
    """
    for name in BEGINNINGS:
        file = results / name
        if file.exists() and not _is_of_multicard(file):
            raise UserError(
                f"{file}: not written by multicard, which would replace it; rename it, or state another folder as "
                f"results in {configuration}"
            )


def _is_of_multicard(file: Path) -> bool:
    """Return True if a file of `BEGINNINGS` has multicard's content; an empty one has no content to lose."""
    content = read_or_none(lambda: file.read_text(encoding="utf-8"))
    if content is None:
        return False
    beginning = content[:SHOWN]
    if not beginning:
        return True
    return beginning.startswith(BEGINNINGS[file.name]) and (file.name != REPORT or REPORT_TITLE in beginning)

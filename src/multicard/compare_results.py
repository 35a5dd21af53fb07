"""`multicard compare` of results: two folders `results`, two archives, or one of each."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multicard.analysis.result_comparison import CANNOT_TELL, MACHINE, Change, ResultComparison, compare_results
from multicard.archive.unpack import unpack
from multicard.core.errors import UserError
from multicard.core.layout import RUN
from multicard.core.terminal import plain
from multicard.core.units import heading, show
from multicard.experiment.config import ARCHIVES

LONGEST = 20  # names in a list on the terminal


def holds_results(path: Path) -> bool:
    """Whether a path is an archive of recorded runs or a folder of results, rather than a trace."""
    return path.name.endswith(ARCHIVES) or (path.is_dir() and any(path.glob(f"runs/*/{RUN}")))


def print_comparison(a: Path, b: Path, console: Console) -> None:
    """Print what changed per configuration from the results `a` to the results `b`, and what else differs.

    Raises
    ------
    UserError
        If one of them holds no results, or a file of a run is missing or damaged.
    """
    for path, other in ((a, b), (b, a)):
        if not holds_results(path):
            raise UserError(f"{path}: expected results as in {other}: a folder with runs/*/{RUN}, or an archive")
    with ExitStack() as stack:
        found = compare_results(*(_run_folders(path, stack) for path in (a, b)))
    _print(found, a, b, console)


def _run_folders(path: Path, stack: ExitStack) -> Sequence[Path]:
    """Run directories of results; those of an archive are unpacked into a temporary folder."""
    if not path.is_dir():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        unpack(path, folder)
        return sorted(folder.iterdir())
    return sorted(record.parent for record in path.glob(f"runs/*/{RUN}"))


def _print(found: ResultComparison, a: Path, b: Path, console: Console) -> None:
    console.print(plain(f"a: {a}, b: {b}"), "")
    if found.changes:
        console.print(_changes(found.changes), "")
    else:
        console.print("cannot tell: no configuration completed in both", "")
    # Archives have numbers in the place of machine names.
    named = all(path.is_dir() for path in (a, b))
    other = [row for row in found.environment if named or row[0] != MACHINE]
    if other:
        console.print(_texts("Other differences, of the runs in both", ("", "a", "b"), other), "")
    if found.outcomes:
        console.print(_texts("Runs with different outcomes", ("run", "a", "b"), found.outcomes), "")
    for side, runs in (("a", found.only_a), ("b", found.only_b)):
        if runs:
            more = f" and {len(runs) - LONGEST} more" if len(runs) > LONGEST else ""
            console.print(plain(f"{_counted(len(runs), 'run')} in {side} only: {', '.join(runs[:LONGEST])}{more}"), "")


def _changes(changes: list[Change]) -> Table:
    caption = (
        "Medians over repeats, and the ratio b/a with its interval: the range of the ratios of single repeats, from "
        "four repeats on the 95 % bootstrap interval. An interval that includes 1 shows no difference. "
    )
    if any(change.verdict == CANNOT_TELL for change in changes):
        caption += "One repeat gives no interval, so a difference may be noise."
    table = Table(caption=caption, title_justify="left", caption_justify="left")
    for name in ("configuration", "measure", "a", "b", "b/a", "interval", "repeats", "b is"):
        table.add_column(name, justify="right" if name in ("a", "b", "b/a", "repeats") else "left")
    last = None
    for change in changes:
        ratio = change.ratio
        bounded = ratio.low is not None and ratio.high is not None
        table.add_row(
            plain("" if change.configuration == last else change.configuration),
            heading(change.measure),
            *("" if value is None else show(change.measure, value) for value in (change.a, change.b)),
            "" if ratio.value is None else f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}" if bounded else "",
            " / ".join(map(str, change.repeats)),
            change.verdict,
        )
        last = change.configuration
    return table


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _texts(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(*headings, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(plain, row))
    return table

"""`multicard history`."""

import argparse
from pathlib import Path

from multicard.cli._command import Command, refuse_unwritable
from multicard.cli.check import (
    OTHER_SESSIONS,
    add_judging,
    line_of,
    read_runs,
    refuse_other_hardware,
    session_spread_of,
    tolerance_of,
)
from multicard.core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the versions in their order, what is followed, and where it is drawn."""
    add = parser.add_argument
    add(
        "versions", type=Path, nargs="+", metavar="RESULTS",
        help="results folders or archives of recorded runs, the oldest first; their names are the versions'",
    )  # fmt: skip
    add_judging(parser, "follow", "NAME")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        default=Path("history"),
        help="figure to write, in three formats; a suffix of these is left out (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Draw a measure of each configuration over versions, and print where it became worse."""
    from multicard.analysis.comparison.regressions import MEASURES, ONE_SESSION, REGRESSION
    from multicard.api.results import follow, hardware_differences, is_synthetic
    from multicard.cli._console import console
    from multicard.core.terminal import plain
    from multicard.figures.draw import save
    from multicard.figures.history import draw_history

    tolerance = tolerance_of(arguments.tolerance)
    if arguments.measure not in MEASURES:
        raise UserError(f"--measure: found {arguments.measure!r}, expected one of {', '.join(MEASURES)}")
    if len(arguments.versions) < 2:
        raise UserError("expected two versions or more, the oldest first")
    if not arguments.out.name:
        raise UserError(f"--out: found {str(arguments.out)!r}, expected the name of a figure, such as history")
    out = stem_of(arguments.out)
    refuse_unwritable("--out", out.with_name(f"{out.name}.png"))
    names = labels(arguments.versions)
    versions = [read_runs(path) for path in arguments.versions]
    refuse_other_hardware(hardware_differences(versions), arguments)
    points = follow(versions, tolerance, arguments.measure, session_spread_of(arguments))
    if not any(point.values for point in points):
        raise UserError(f"{arguments.measure} was not measured in any version")
    lines = []
    for point in points:
        for judgement, since in ((point.since_previous, point.previous), (point.since_first, point.first)):
            if judgement and judgement.verdict == REGRESSION:
                lines.append(f"{names[since]} to {names[point.version]}: {line_of(judgement)}")
                break
    if any(point.since_previous and point.since_previous.reason == ONE_SESSION for point in points):
        lines.append(OTHER_SESSIONS)
    terminal = console()
    for line in lines:
        terminal.print(plain(line), soft_wrap=True)
    save(*draw_history(points, names, tolerance, any(map(is_synthetic, versions))), out)
    terminal.print(plain(f"figure: {out}.png, .svg, .pdf; its numbers: {out}.csv"), soft_wrap=True)


def stem_of(out: Path) -> Path:
    """The name of a figure without the suffix of a format.

    >>> str(stem_of(Path("out/history.png"))), str(stem_of(Path("v1.2")))
    ('out/history', 'v1.2')
    """
    from multicard.figures.draw import FORMATS

    return out.with_suffix("") if out.suffix.removeprefix(".") in FORMATS else out


def labels(paths: list[Path]) -> list[str]:
    """Names of versions: those of their archives or folders, or whole paths where these are alike.

    >>> labels([Path("old/v1.tar.gz"), Path("v2.tar.gz"), Path("results")])
    ['v1', 'v2', 'results']
    >>> labels([Path("v1/results"), Path("v2/results")])
    ['v1/results', 'v2/results']
    """
    from multicard.experiment.config import ARCHIVE

    names = [path.resolve().name.removesuffix(ARCHIVE) for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


COMMAND = Command(
    "history",
    54,
    "plot how each configuration's speed changed over versions, and mark where it became worse",
    add_arguments,
    run,
)

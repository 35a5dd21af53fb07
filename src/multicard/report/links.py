"""Links from the page to files of its results folder, relative to the page, for those that exist."""

import os
import shlex
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from multicard.core.layout import CAPTURED, EXPORTED, LOG, RUN_NAME, TRACE

# Files of a figure, by their suffixes in the order of their links.
FIGURE_SUFFIXES = ("svg", "png", "pdf", "csv", "txt")


class Link(NamedTuple):
    """A link: its text, and its address relative to the page, with special characters encoded."""

    text: str
    address: str


def run_links(results: Path, run: str, page: Path) -> list[Link]:
    """Return links to the log of a run, the folder of its trace and its own folder, for those that exist.

    `run`: id of the run as tables state it. One that is no name of a run has no links: it might lead anywhere.
    """
    if not RUN_NAME.fullmatch(run):
        return []
    folder = results / "runs" / run
    links = []
    if (folder / LOG).is_file():
        links.append(Link("log", _address(folder / LOG, page)))
    if has_trace(folder):
        links.append(Link("trace", f"{_address(folder / TRACE, page)}/"))
    if folder.is_dir():
        links.append(Link("folder", f"{_address(folder, page)}/"))
    return links


def trace_address(results: Path, run: str, page: Path) -> str | None:
    """Return the path of a run's trace from the folder of the page, quoted for a shell; None if there is no trace."""
    if not RUN_NAME.fullmatch(run) or not has_trace(results / "runs" / run):
        return None
    return shlex.quote(os.path.relpath(results / "runs" / run / TRACE, page.parent))


def has_trace(run: Path) -> bool:
    """True if the folder of a run holds captured files of a profiler, not only the lists of what was captured."""
    return any(path.name not in (CAPTURED, EXPORTED) for path in (run / TRACE).glob("*"))


def figure_links(results: Path, path_in_results: str, page: Path) -> list[Link]:
    """Return links to the files of a figure, for those that exist. `path_in_results`: without a suffix."""
    paths = [results / f"{path_in_results}.{suffix}" for suffix in FIGURE_SUFFIXES]
    return [Link(path.suffix.removeprefix("."), _address(path, page)) for path in paths if path.is_file()]


def _address(path: Path, page: Path) -> str:
    return quote(os.path.relpath(path, page.parent))

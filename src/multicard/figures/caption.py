"""Captions of figures: what a figure shows, of what, how often it was measured, and what is in doubt.

A caption is plain text beside the picture, so that a picture fits into a paper as it is.
"""

from collections.abc import Iterable, Sequence

import pandas as pd

from multicard.answers.notes import notes
from multicard.config.wording import setting
from multicard.core.text import first_of
from multicard.figures.catalog import load_drawing
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# Most jobs, machines or sets of versions that a caption names.
MOST_NAMES = 3


def caption(name: str, results: Results, data: pd.DataFrame) -> str:
    """Return the caption of a figure of the catalog, as plain text in one paragraph.

    It has the question, the job with hardware and versions, how to read the figure, the number of repeats, and notes
    about runs that have no numbers or doubtful ones. `data`: the table of the figure, as `draw` returns it.
    """
    drawing = load_drawing(name)
    sentences = [drawing.question, *_subject(results)]
    if "nothing_to_show" in data:
        sentences.append(f"Nothing to show: {data['nothing_to_show'].iloc[0]}.")
    else:
        sentences += [drawing.caption, *_repeats(data)]
    sentences += [f"{note}." for note in notes(results, drawing.profiled)]
    return " ".join(sentences)


def _subject(results: Results) -> list[str]:
    """Return a sentence on what was trained, and one on which machine and with which versions, as far as recorded."""
    completed = [configuration for configuration in results.configurations() if configuration.completed]
    jobs = [configuration.program.comparison.job(configuration.parameters) for configuration in completed]
    machines = [configuration.provenance.machine for configuration in completed]
    versions = [configuration.provenance.software for configuration in completed]
    words = [_names(jobs), _only_method(completed), _names(machines), _names(versions)]
    stated = "; ".join(filter(None, words))
    return [f"Measured: {stated}."] if stated else []


def _names(texts: Iterable[str | None]) -> str:
    """Return the different texts, each once, as one; empty if there are none."""
    return first_of(list(dict.fromkeys(filter(None, texts))), MOST_NAMES)


def _only_method(configurations: Sequence[Configuration]) -> str:
    """Return the strategy or technique that all configurations have, because then no series names it; else empty."""
    settings = {
        setting(configuration.program.method, configuration[configuration.program.method])
        for configuration in configurations
        # A script's launcher is no method of training.
        if not configuration.program.is_editable
    }
    return settings.pop() if len(settings) == 1 else ""


def _repeats(data: pd.DataFrame) -> list[str]:
    """Return a sentence on the number of repeats, and on the intervals; none if the table states no repeats."""
    counts = data["repeats"][data["repeats"] > 0] if "repeats" in data else pd.Series(dtype=int)
    if counts.empty:
        return []
    fewest, most = int(counts.min()), int(counts.max())
    if most == 1:
        return ["n=1: a single repeat of each, so no intervals."]
    n = f"n={fewest}" if fewest == most else f"n={fewest} to {most}"
    has_intervals = data.filter(regex="_low$").notna().any(axis=None)
    return [f"{n} repeats, 95% CI." if has_intervals else f"{n} repeats."]

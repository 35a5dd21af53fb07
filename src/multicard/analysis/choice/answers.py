"""The answers for a job, in words: how many devices, which configuration, and what a change of the training gains."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from multicard.analysis.answer import CHANGE, HOW_MANY, NO_THROUGHPUT, NOT_KNOWN, WHICH, Answer
from multicard.analysis.choice.choice import Choice, Gain
from multicard.analysis.choice.choices import Choices
from multicard.analysis.choice.learning import changes_from, words_of
from multicard.analysis.scaling.speedup import implausible
from multicard.core.text import plural
from multicard.core.units import number
from multicard.experiment.workload import BATCH
from multicard.stats.corrections import corrected
from multicard.stats.interval import EQUAL_REPEATS, Interval, interval_columns, verdict
from multicard.stats.selection import chosen_among

HOURS = {"cuda": "GPU-hours", "cpu": "process-hours"}
FASTER = "× as fast"
# The first sentence about changes lists at most so many.
MOST_CHANGES = 3


class ChosenSpeedup(NamedTuple):
    """The fastest choice on a number of devices, with its speed-up over one device."""

    choice: Choice
    ratio: Interval  # its interval and p-value allow for the choice having been made by the same values


class Result(NamedTuple):
    """A result in words, and the doubt of it; the doubt is empty where there is none."""

    text: str
    doubt: str


def speedups(job: Choices) -> list[ChosenSpeedup]:
    """Return the fastest choice that trains like the reference on each number of devices that has a speed-up.

    Numbers of devices rise. Intervals and p-values allow for its own values having chosen it among those on as many
    devices (`selection.chosen_among`). The p-values are corrected for the number of numbers of devices as well.
    """
    candidates = [row for row in job.rows if _is_candidate(row)]
    counts = Counter(row.devices for row in candidates)
    slowest_first = sorted(candidates, key=lambda row: row.time_s.value, reverse=True)
    # The fastest on a number of devices comes last, and so replaces the others.
    fastest = {row.devices: row for row in slowest_first}
    chosen = [fastest[devices] for devices in sorted(fastest)]
    ratios = [chosen_among(row.speedup, counts[row.devices]) for row in chosen if row.speedup is not None]
    return [ChosenSpeedup(row, ratio) for row, ratio in zip(chosen, corrected(ratios), strict=True)]


def best_of_words(job: Choices, devices: int) -> str:
    """Return among how many choices the fastest on a number of devices was chosen, in words; empty if alone."""
    count = sum(_is_candidate(row) and row.devices == devices for row in job.rows)
    return f"the best of {count}" if count > 1 else ""


def how_many(job: Choices, caveats: tuple[str, ...] = ()) -> Answer:
    """Return how much faster each number of devices is than one, the fastest first; or why that is not known."""
    by_speed = sorted(speedups(job), key=lambda speedup: speedup.ratio.value, reverse=True)
    if not by_speed:
        return Answer(HOW_MANY, _why_no_speedup(job))
    sentence = joined([_speedup_result(job, speedup) for speedup in by_speed])
    rows = [
        {
            "devices": speedup.choice.devices,
            "configuration": job.recipe(speedup.choice),
            "repeats": speedup.ratio.repeats,
            **interval_columns("speedup", speedup.ratio),
            "efficiency": speedup.ratio.value / speedup.choice.devices,
        }
        for speedup in by_speed
    ]
    return Answer(HOW_MANY, sentence, tuple(rows), caveats, "speedup")


def _why_no_speedup(job: Choices) -> str:
    counts = {row.devices for row in job.rows}
    if not counts:
        return NO_THROUGHPUT
    if len(counts) == 1:
        [only] = counts
        return f"{NOT_KNOWN}: only {job.on(only)} {'was' if only == 1 else 'were'} measured"
    return f"{NOT_KNOWN}: no run on one device to compare with"


def which_configuration(job: Choices, caveats: tuple[str, ...] = ()) -> list[Answer]:
    """Return the fastest configuration on each number of devices where a training was measured in several.

    Those that train like the reference come first, then those on most devices.
    """
    ordered = sorted(job.rows, key=lambda row: (not row.trains_like_reference, -row.devices))
    answers = []
    for fastest in ordered:
        rivals = _rivals(job, fastest)
        if fastest.ratio is None and rivals:
            rows = [_family_row(job, row) for row in (fastest, *rivals)]
            answers.append(Answer(WHICH, _fastest_words(job, fastest, rivals), tuple(rows), caveats, "tradeoff"))
    return answers


def gains_by_changes(job: Choices, caveats: tuple[str, ...] = ()) -> list[Answer]:
    """Return what changes of what is learned gain over the fastest choice without them, the largest gains first.

    The first `MOST_CHANGES` are in one answer, the others in another.
    """
    gains = [(row, row.gain) for row in job.rows if row.gain is not None]
    gains.sort(key=lambda pair: pair[1].ratio.value, reverse=True)
    answers = []
    for part in (gains[:MOST_CHANGES], gains[MOST_CHANGES:]):
        if part:
            results = [_gain_result(job, row, gain) for row, gain in part]
            rows = [_gain_row(row, gain) for row, gain in part]
            answers.append(Answer(CHANGE, joined(results), tuple(rows), caveats))
    return answers


def _gain_result(job: Choices, row: Choice, gain: Gain) -> Result:
    text = f"{_change_words(row, gain)}: {gain.ratio.format(unit=FASTER)} on {job.on(row.devices)}"
    return Result(text, doubt_of(gain.ratio))


def _gain_row(row: Choice, gain: Gain) -> dict[str, Any]:
    return {
        "change": _change_words(row, gain),
        "devices": row.devices,
        **interval_columns("speed_ratio", gain.ratio),
    }


def _change_words(row: Choice, gain: Gain) -> str:
    """Return what a choice changes of the training that its gain is measured against, in words."""
    return words_of(changes_from(gain.instead_of, row.learning))


def joined(results: Sequence[Result]) -> str:
    """Return results in one text, each with its doubt; a doubt that all of several share stands once, at the end.

    >>> joined([Result("2 GPUs: 1.1×", "it may be noise"), Result("4 GPUs: 1.2×", "it may be noise")])
    '2 GPUs: 1.1×; 4 GPUs: 1.2×; each: it may be noise'
    """
    doubts = {result.doubt for result in results}
    if len(results) > 1 and len(doubts) == 1:
        [doubt] = doubts
        texts = [result.text for result in results]
        return "; ".join([*texts, f"each: {doubt}"] if doubt else texts)
    return "; ".join(f"{result.text}, {result.doubt}" if result.doubt else result.text for result in results)


def doubt_of(ratio: Interval) -> str:
    """Return why a ratio shows no difference, by its corrected p-value; empty where it shows one.

    >>> doubt_of(Interval(0.98, 0.96, 0.99, 2, p_value=0.2)), doubt_of(Interval(1.01, 0.99, 1.02, 2, p_value=0.4))
    ('not significant among so many comparisons', 'no significant difference')
    """
    if verdict(ratio) == "unknown":
        return "one repeat, so it may be noise" if ratio.repeats < 2 else EQUAL_REPEATS
    if verdict(ratio) != "none":
        return ""
    alone_shows_difference = (ratio.low is not None and ratio.low > 1) or (ratio.high is not None and ratio.high < 1)
    return "not significant among so many comparisons" if alone_shows_difference else "no significant difference"


def standing(row: Choice) -> str:
    """Return whether a choice is shown to be slower than the fastest of its family, in words."""
    ratio = row.ratio
    if ratio is None:
        return f"fastest of {row.rivals}" if row.rivals > 1 else ""
    if row.is_worse:
        return "slower"
    if ratio.p_value is None:
        return f"{'one repeat' if ratio.repeats < 2 else 'equal repeats'}, so not compared"
    alone_shows_slower = ratio.high is not None and ratio.high < 1
    return f"not significantly slower{' among so many comparisons' if alone_shows_slower else ''}"


def _is_candidate(row: Choice) -> bool:
    """True if a choice may be the one that shows how much faster its number of devices is."""
    return row.trains_like_reference and row.speedup is not None and row.devices > 1


def _speedup_result(job: Choices, speedup: ChosenSpeedup) -> Result:
    row, ratio = speedup
    one_device = "1 GPU" if job.device == "cuda" else "1"
    devices = job.on(row.devices) + (" (weak scaling)" if BATCH in row.changes else "")
    device_hours = f"{number(row.devices / ratio.value)}× the {HOURS[job.device]}"
    notes = (
        best_of_words(job, row.devices),
        doubt_of(ratio) or device_hours,
        implausible(ratio.value, row.devices),
    )
    return Result(f"{devices}: {ratio.format(unit=f'{FASTER} as {one_device}')}", ", ".join(filter(None, notes)))


def _rivals(job: Choices, fastest: Choice) -> list[Choice]:
    """Return the choices that are compared with the fastest of their family."""
    return [
        row
        for row in job.rows
        if row.ratio is not None and (row.devices, row.changes) == (fastest.devices, fastest.changes)
    ]


def _family_row(job: Choices, row: Choice) -> dict[str, Any]:
    return {
        "devices": row.devices,
        "configuration": job.recipe(row),
        "repeats": row.rate.repeats,
        **interval_columns("throughput_per_s", row.rate),
        **interval_columns("speed_ratio", row.ratio),
    }


def _fastest_words(job: Choices, fastest: Choice, rivals: Sequence[Choice]) -> str:
    """Return the fastest of a family with the nearest of its rivals, in words."""
    ratios = [(row, row.ratio) for row in rivals if row.ratio is not None]
    nearest, ratio = min(ratios, key=lambda rival: (rival[0].is_worse, abs(rival[1].value - 1)))
    where = job.on(fastest.devices) + (f" ({words_of(fastest.changes)})" if fastest.changes else "")
    rate = fastest.rate.format(unit=f" {plural(2, job.unit)} per second")
    more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
    return (
        f"fastest of {fastest.rivals} on {where}: {job.recipe(fastest)}, {rate}; {standing(nearest)}: "
        f"{job.recipe(nearest)}, {ratio.format(unit=FASTER)}{more}"
    )

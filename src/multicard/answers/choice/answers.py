"""The answers for a job, in words: how many devices, which configuration, and what a change of the training gains."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from multicard.answers.answer import CHANGE, HOW_MANY, NO_THROUGHPUT, NOT_KNOWN, WHICH, Answer
from multicard.answers.choice.choice import Choice, Gain
from multicard.answers.choice.choices import Choices
from multicard.answers.choice.learning import changes_from, words_of
from multicard.answers.doubt import REMEDY, scatter_words, undecided_words
from multicard.answers.scaling.speedup import implausible
from multicard.core.text import plural
from multicard.core.units import number
from multicard.core.values import Row
from multicard.programs.program import BATCH
from multicard.stats.corrections import corrected
from multicard.stats.interval import EQUAL_REPEATS, Interval, interval_columns, verdict
from multicard.stats.selection import chosen_among

HOURS = {"cuda": "GPU-hours", "cpu": "process-hours"}
FASTER = "× as fast"
# The first answer about changes of the training lists at most this many. The others are in a second answer.
MOST_CHANGES = 3


class ChosenSpeedup(NamedTuple):
    """The fastest choice on a number of devices, with its speed-up over one device."""

    choice: Choice
    ratio: Interval  # its interval and p-value take into account that the same values picked the choice


class Result(NamedTuple):
    """A result in words, with a note on it: a reason to doubt it, or further numbers. The note may be empty."""

    text: str
    note: str


def speedups(job: Choices) -> list[ChosenSpeedup]:
    """Return the speed-up of the fastest choice on each number of devices, by rising number of devices.

    Only choices on several devices that train like the reference and have a speed-up are considered. Which of them is
    the fastest follows from their own values. So intervals and p-values take into account how many were considered on
    that number of devices (`selection.chosen_among`). P-values are then corrected for the number of speed-ups returned.
    """
    candidates = [row for row in job.rows if _is_candidate(row)]
    counts = Counter(row.devices for row in candidates)
    slowest_first = sorted(candidates, key=lambda row: row.time_s.value, reverse=True)
    # Of the choices on one number of devices the fastest comes last, so it replaces the others in the dictionary.
    fastest = {row.devices: row for row in slowest_first}
    chosen = [fastest[devices] for devices in sorted(fastest)]
    ratios = [chosen_among(row.speedup, counts[row.devices]) for row in chosen if row.speedup is not None]
    corrected_ratios = corrected(ratios)
    return [ChosenSpeedup(row, ratio) for row, ratio in zip(chosen, corrected_ratios, strict=True)]


def best_of_words(job: Choices, devices: int) -> str:
    """Return in words from how many choices the fastest on `devices` devices was picked; empty if from one or none."""
    candidates = [row for row in job.rows if _is_candidate(row) and row.devices == devices]
    return f"the best of {len(candidates)}" if len(candidates) > 1 else ""


def how_many(job: Choices, caveats: tuple[str, ...] = ()) -> Answer:
    """Return how many times as fast as one device each number of devices is, fastest first; or why none is known."""
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
        verb = "was" if only == 1 else "were"
        return f"{NOT_KNOWN}: only {job.on(only)} {verb} measured"
    if 1 in counts:
        return f"{NOT_KNOWN}: no run on one device of the same training and parameters to compare with"
    return f"{NOT_KNOWN}: no run on one device to compare with"


def which_configuration(job: Choices, caveats: tuple[str, ...] = ()) -> list[Answer]:
    """Return an answer for each family of several choices: which is the fastest, and how the others compare with it.

    A family is a training on one number of devices. Families that train like the reference come first. Among these, and
    among the other families, those on more devices come first.
    """
    ordered = sorted(job.rows, key=lambda row: (not row.trains_like_reference, -row.devices))
    answers = []
    for fastest in ordered:
        rivals = _rivals(job, fastest)
        if fastest.ratio is None and rivals:
            sentence = _fastest_words(job, fastest, rivals)
            rows = [_family_row(job, row) for row in (fastest, *rivals)]
            answers.append(Answer(WHICH, sentence, tuple(rows), caveats, "tradeoff"))
    return answers


def gains_by_changes(job: Choices, caveats: tuple[str, ...] = ()) -> list[Answer]:
    """Return how much faster training is after changes of what is learned, the largest gain first.

    The gains are those of `families.compared`. The first `MOST_CHANGES` are in one answer, the others in a second one.
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
    change = _change_words(row, gain)
    if scattered := scatter_words(gain.ratio):
        return Result(f"{change} on {job.on(row.devices)}: {scattered}", REMEDY)
    ratio = gain.ratio.format(unit=FASTER)
    return Result(f"{change}: {ratio} on {job.on(row.devices)}", doubt_of(gain.ratio))


def _gain_row(row: Choice, gain: Gain) -> Row:
    return {
        "change": _change_words(row, gain),
        "devices": row.devices,
        **interval_columns("speed_ratio", gain.ratio),
    }


def _change_words(row: Choice, gain: Gain) -> str:
    """Return in words how the training of a choice differs from the training that its gain is measured against."""
    return words_of(changes_from(gain.instead_of, row.learning))


def joined(results: Sequence[Result]) -> str:
    """Join results to one text, each with its note. If several results all have the same note, it stands once, last.

    >>> joined([Result("2 GPUs: 1.1×", "it may be noise"), Result("4 GPUs: 1.2×", "it may be noise")])
    '2 GPUs: 1.1×; 4 GPUs: 1.2×; each: it may be noise'
    """
    notes = {result.note for result in results}
    if len(results) > 1 and len(notes) == 1:
        [common_note] = notes
        texts = [result.text for result in results]
        if common_note:
            texts.append(f"each: {common_note}")
    else:
        texts = [f"{result.text}, {result.note}" if result.note else result.text for result in results]
    return "; ".join(texts)


def doubt_of(ratio: Interval) -> str:
    """Return why a ratio shows no difference from 1 by its corrected p-value; empty if it shows one.

    A ratio without a p-value shows none, because there is one repeat, or because repeats are equal.

    >>> doubt_of(Interval(0.98, 0.96, 0.99, 2, p_value=0.2)), doubt_of(Interval(1.01, 0.99, 1.02, 2, p_value=0.4))
    ('not significant among so many comparisons', 'no significant difference')
    """
    if verdict(ratio) == "unknown":
        return "one repeat, so it may be noise" if ratio.repeats < 2 else EQUAL_REPEATS
    if verdict(ratio) != "none":
        return ""
    alone_shows_more = ratio.low is not None and ratio.low > 1
    alone_shows_less = ratio.high is not None and ratio.high < 1
    alone_shows_difference = alone_shows_more or alone_shows_less
    return "not significant among so many comparisons" if alone_shows_difference else "no significant difference"


def standing(row: Choice) -> str:
    """Return in words how a choice compares with the fastest of its family; empty if the family has no other choice."""
    ratio = row.ratio
    if ratio is None:
        return f"fastest of {row.rivals}" if row.rivals > 1 else ""
    if row.is_worse:
        return "slower"
    if ratio.p_value is None:
        reason = "one repeat" if ratio.repeats < 2 else "equal repeats"
        return f"{reason}, so not compared"
    alone_shows_slower = ratio.high is not None and ratio.high < 1
    return "not significantly slower among so many comparisons" if alone_shows_slower else "not significantly slower"


def _is_candidate(row: Choice) -> bool:
    """True if `speedups` considers a choice: it trains like the reference, on several devices, and has a speed-up."""
    return row.trains_like_reference and row.speedup is not None and row.devices > 1


def _speedup_result(job: Choices, speedup: ChosenSpeedup) -> Result:
    row, ratio = speedup
    one_device = "1 GPU" if job.device == "cuda" else "1"
    devices = job.on(row.devices)
    if BATCH in row.changes:
        devices += " (weak scaling)"
    if scattered := scatter_words(ratio):
        return Result(f"{devices}: {scattered}", REMEDY)
    times_as_fast = ratio.format(unit=f"{FASTER} as {one_device}")
    device_hours = f"{number(row.devices / ratio.value)}× the {HOURS[job.device]}"
    notes = (
        best_of_words(job, row.devices),
        doubt_of(ratio) or device_hours,
        implausible(ratio.value, row.devices),
    )
    return Result(f"{devices}: {times_as_fast}", ", ".join(note for note in notes if note))


def nearest_rival(job: Choices, fastest: Choice) -> Choice | None:
    """Return the choice of the family of `fastest` that comes nearest to it; None if it is the only one.

    Rivals that are not shown to be slower count as nearer than those that are. Among them the speed decides.
    """

    def distance(rival: Choice) -> tuple[bool, float]:
        return rival.is_worse, math.inf if rival.ratio is None else abs(rival.ratio.value - 1)

    return min(_rivals(job, fastest), key=distance, default=None)


def _rivals(job: Choices, fastest: Choice) -> list[Choice]:
    """Return the choices of the family of `fastest` that are compared with the fastest one."""
    family = [row for row in job.rows if row.devices == fastest.devices and row.changes == fastest.changes]
    return [row for row in family if row.ratio is not None]


def _family_row(job: Choices, row: Choice) -> Row:
    return {
        "devices": row.devices,
        "configuration": job.recipe(row),
        "repeats": row.rate.repeats,
        **interval_columns("throughput_per_s", row.rate),
        **interval_columns("speed_ratio", row.ratio),
    }


def _fastest_words(job: Choices, fastest: Choice, rivals: Sequence[Choice]) -> str:
    """Return in words which choice of a family is the fastest, and which of its rivals is nearest to it."""
    nearest = nearest_rival(job, fastest)
    if nearest is None or nearest.ratio is None:
        return ""
    ratio = nearest.ratio
    family = job.on(fastest.devices)
    if fastest.changes:
        family += f" ({words_of(fastest.changes)})"
    more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
    rate = fastest.rate.format(unit=f" {plural(2, job.unit)} per second")
    fastest_over_nearest = ratio.map(lambda times: 1 / times)
    undecided = undecided_words(job.recipe(fastest), job.recipe(nearest), fastest_over_nearest)
    if undecided:
        return f"on {family}, {undecided}{more}"
    times_as_fast = ratio.format(unit=FASTER)
    return (
        f"fastest of {fastest.rivals} on {family}: {job.recipe(fastest)}, {rate}; "
        f"{standing(nearest)}: {job.recipe(nearest)}, {times_as_fast}{more}"
    )

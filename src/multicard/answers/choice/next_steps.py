"""The bottlenecks of a job in words, with options against them, and what could change the answers for the job."""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.answers.ablation import PartCost
from multicard.answers.bottlenecks.bottlenecks import Bottleneck
from multicard.answers.bottlenecks.options import options_against
from multicard.answers.bottlenecks.situation import FactsByConfiguration
from multicard.answers.choice.advice import BottleneckAdvice
from multicard.answers.choice.answers import speedups
from multicard.answers.choice.choices import Choices
from multicard.answers.gain import WORTHWHILE
from multicard.answers.needed_repeats import needed_repeats
from multicard.answers.scaling.superlinear import superlinear_caveat
from multicard.core.text import counted, plural
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.notices import NOTICES, PROFILED, REMEDIES, WINDOW_DIFFERS, notices_by_subject
from multicard.stats.interval import verdict

# The caveats of a job name at most this many notices.
MOST_NOTICES = 3


def part_of(
    bottleneck: Bottleneck,
    about: Configuration,
    measured: Sequence[Configuration],
    cost: PartCost | None = None,
    facts: FactsByConfiguration | None = None,
    told: Mapping[str, Any] | None = None,
) -> BottleneckAdvice:
    """Return a bottleneck in words, with the options against it that are to be tried, and those that were measured.

    There are no options to try if removing the bottleneck gains less than `WORTHWHILE`: by its share of the step,
    unless a measurement decides. `cost`: what it was measured to cost; None if that was not measured. If its interval
    excludes a gain of `WORTHWHILE`, there are none. If a cost is shown, the measured ratio is the gain. If one repeat
    or a wide interval leaves both open, the share of the step decides.

    `measured`: all configurations that ran. `facts`: how these train; None if that is not known of any. `told`: changes
    of parameters that are told elsewhere, so that the option to make them is left out.
    """
    gain, measured_words = bottleneck.gain, ""
    if cost is not None and cost.is_shown:
        gain, measured_words = cost.ratio.value, f"{cost.sentence}, measured"
    if cost is not None and (cost.is_shown or cost.is_excluded):
        is_worthwhile = not cost.is_excluded
    else:
        is_worthwhile = gain is None or gain >= WORTHWHILE
    if cost is not None:
        bound = f"measured: {cost.words()}"
    elif gain is not None:
        bound = f"up to {gain:.2f}× as fast if it took no time"
    else:
        bound = ""
    options = options_against(about, bottleneck, measured, facts, told)
    return BottleneckAdvice(
        kind=bottleneck.name.capitalize(),
        evidence=bottleneck.evidence,
        options=options.untried if is_worthwhile else [],
        bound=bound,
        measured=measured_words,
        gain=gain,
        tried=[words for option in options.measured if (words := option.words)],
    )


def caveats(job: Choices, profiled: bool = True) -> tuple[str, ...]:
    """Return what could change the answers for a job; empty if no run completed.

    That is whether the comparisons are decided, how many repeats would show a small difference, which speed-ups are
    more than ideal, the most frequent notices about the runs, and how many runs never completed. `profiled`: False to
    leave out notices about the profiled window, which say nothing about speed.
    """
    runs = [run for configuration in job.configurations for run in configuration.completed]
    if not runs:
        return ()
    sure = [words for words in (_comparisons_words(job), _repeats_words(job)) if words]
    texts = [*sure, *superlinear_caveats(job), *_notices_words(runs, () if profiled else PROFILED)]
    lost_runs = sum(len(configuration.runs) for configuration in job.lost)
    if lost_runs:
        texts.append(f"{counted(lost_runs, 'run')} of {counted(len(job.lost), 'configuration')} never completed")
    return tuple(texts)


def superlinear_caveats(job: Choices) -> list[str]:
    """Return which of the speed-ups that are told (`speedups`) are more than ideal, and what to look at."""
    told = {speedup.choice.key for speedup in speedups(job)}
    of_job = [speedup for speedup in job.speedups if speedup.configuration.key in told]
    return [caveat for speedup in of_job if (caveat := superlinear_caveat(speedup)) is not None]


def _comparisons_words(job: Choices) -> str:
    """Return in words whether all comparisons that the answers make are decided; empty without any."""
    ratios = [speedup.ratio for speedup in speedups(job)]
    ratios += [row.ratio for row in job.rows if row.ratio is not None]
    ratios += [row.gain.ratio for row in job.rows if row.gain is not None]
    undecided = sum(verdict(ratio) in ("none", "unknown") for ratio in ratios)
    if not ratios:
        return ""
    if len(ratios) == 1:
        return "the only comparison is not decided" if undecided else "the only comparison is decided"
    if undecided == len(ratios):
        return f"none of {len(ratios)} comparisons is decided"
    if undecided:
        return f"{undecided} of {len(ratios)} comparisons {'is' if undecided == 1 else 'are'} not decided"
    return "both comparisons are decided" if len(ratios) == 2 else f"all {len(ratios)} comparisons are decided"


def _repeats_words(job: Choices) -> str:
    """Return in words how many repeats a small difference takes, and how many there are."""
    counts = sorted({len(configuration.completed) for configuration in job.configurations})
    range_words = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    repeats = f"{range_words} {plural(counts[-1], 'repeat')}"
    if len(job.configurations) == 1:
        return repeats
    needed = needed_repeats(job.rates, len(job.configurations))
    if needed is None:
        return f"{repeats} of each configuration"
    return needed.words_with(counts[0], f"{range_words} of each configuration")


def _notices_words(runs: Sequence[MeasuredRun], left_out: Sequence[str]) -> list[str]:
    """Return the most frequent notices about some runs, each with the number of runs that have it.

    `left_out`: subjects of notices that are not wanted.
    """
    texts_by_notice: dict[str, list[str]] = {}
    for run in runs:
        for notice, text in notices_by_subject(run.values).items():
            if notice not in left_out:
                texts_by_notice.setdefault(notice, []).append(text)
    by_frequency = sorted(
        texts_by_notice, key=lambda notice: (-len(texts_by_notice[notice]), list(NOTICES).index(notice))
    )
    return [_notice_words(notice, texts_by_notice[notice], len(runs)) for notice in by_frequency[:MOST_NOTICES]]


def _notice_words(notice: str, texts: Sequence[str], run_count: int) -> str:
    """Return a notice with the number of runs that have it; of a profiled window also what it means, and what helps.

    `texts`: the notice's text for each run that has it.
    """
    words = f"{notice} in {len(texts)} of {counted(run_count, 'run')}"
    if notice != WINDOW_DIFFERS:
        return words
    example = texts[0] if len(set(texts)) == 1 else f"e.g. {texts[0]}"
    return f"{words} ({example}): {REMEDIES[notice]}"

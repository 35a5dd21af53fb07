"""What to try against the bottlenecks of a job, in words, and what could change the answers for the job."""

from collections import Counter
from collections.abc import Sequence

from multicard.analysis.ablation import WORTHWHILE, PartCost
from multicard.analysis.bottlenecks.bottlenecks import Bottleneck
from multicard.analysis.bottlenecks.options import untried
from multicard.analysis.choice.advice import BottleneckAdvice
from multicard.analysis.choice.choices import Choices
from multicard.analysis.runs.notices import NOTICES, notices_by_subject
from multicard.core.text import counted, listed
from multicard.core.units import percent
from multicard.results.configuration import Configuration, MeasuredRun

# A sentence on what to try names at most this many options.
MOST_OPTIONS = 3
# The caveats of a job name at most this many notices.
MOST_NOTICES = 3


def part_of(
    bottleneck: Bottleneck, about: Configuration, measured: Sequence[Configuration], cost: PartCost | None
) -> BottleneckAdvice:
    """Return a bottleneck in words, with the options against it that no run has tried.

    It has no options if removing the bottleneck is known to gain less than `WORTHWHILE`. The gain is estimated from its
    share of the step, unless a measurement decides. `cost`: what it was measured to cost; None if that was not
    measured. If a cost is shown, the measured ratio is the gain. If a gain of `WORTHWHILE` is excluded, nothing is
    gained. If one repeat or a wide interval leaves both open, the estimate counts.

    `measured`: all configurations that ran. Options that these have tried are left out.
    """
    gain, measured_words = bottleneck.gain, ""
    if cost is not None and cost.is_shown:
        gain, measured_words = cost.ratio.value, f"{cost.sentence}, measured"
    elif cost is not None and cost.is_excluded:
        gain = 1.0
    options = untried(about, bottleneck, measured) if gain is None or gain >= WORTHWHILE else []
    if cost is not None:
        bound = f"measured: {cost.words()}"
    elif gain is not None:
        bound = f"about {gain:.2f} times as fast if it took no time"
    else:
        bound = ""
    return BottleneckAdvice(bottleneck.name.capitalize(), bottleneck.evidence, options, bound, measured_words)


def trial(bottleneck: Bottleneck, part: BottleneckAdvice, whole: str) -> str:
    """Return a sentence on what to try against a bottleneck, with the reason; empty without options.

    `whole`: the word for the time that shares are parts of, `step` or `capture`.
    """
    if not part.options:
        return ""
    options = listed(part.options[:MOST_OPTIONS], "or")
    if part.measured:
        return f"{options}, since {part.measured}"
    return f"{options}, since {_reason(bottleneck, whole)}{f'; {part.bound}' if part.bound else ''}"


def _reason(bottleneck: Bottleneck, whole: str) -> str:
    if bottleneck.name == "memory":
        return "it needs too much memory"
    share = percent(bottleneck.share)
    if bottleneck.name == "padding":
        return f"{share} of the tokens are padding"
    return f"{share} of the {whole} is {bottleneck.name}"


def caveats(job: Choices) -> tuple[str, ...]:
    """Return what could change the answers for a job; empty if no run completed.

    That is how many repeats there are, the most frequent notices about the runs, and how many runs never completed.
    """
    runs = [run for configuration in job.configurations for run in configuration.completed]
    if not runs:
        return ()
    texts = [_repeats_words(job), *_notices_words(runs)]
    lost_runs = sum(len(configuration.runs) for configuration in job.lost)
    if lost_runs:
        texts.append(f"{counted(lost_runs, 'run')} of {counted(len(job.lost), 'configuration')} never completed")
    return tuple(texts)


def _repeats_words(job: Choices) -> str:
    counts = sorted({len(configuration.completed) for configuration in job.configurations})
    repeats = f"{counts[0]} to {counts[-1]} repeats" if len(counts) > 1 else counted(counts[0], "repeat")
    return f"{repeats} of each configuration" if len(job.configurations) > 1 else repeats


def _notices_words(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the most frequent notices about some runs, each with the number of runs that have it."""
    counts = Counter(notice for run in runs for notice in notices_by_subject(run.values))
    by_frequency = sorted(counts, key=lambda notice: (-counts[notice], list(NOTICES).index(notice)))
    return [f"{notice} in {counts[notice]} of {counted(len(runs), 'run')}" for notice in by_frequency[:MOST_NOTICES]]

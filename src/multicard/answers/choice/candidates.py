"""What to try next for a job: candidates of several kinds, in the order of what they gain.

Fewer devices come first, where more are no faster. Then come the remedies of causes that the record of a run names, and
options against parts of the step that take a known share of it, those with the largest gain first. Options that fit any
program are for jobs in which nothing of this is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from multicard.answers.bottlenecks.bottlenecks import Bottleneck, BottleneckReport, unseen
from multicard.answers.bottlenecks.options import options_against
from multicard.answers.bottlenecks.situation import FactsByConfiguration
from multicard.answers.choice.advice import BottleneckAdvice
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.text import listed
from multicard.core.units import percent
from multicard.results.breakdown import StepPart
from multicard.results.configuration import Configuration

# A sentence on what to try names at most this many options.
MOST_OPTIONS = 3
# Beside a cause, or a part of the step with options against it, that takes at least this share of the time, options
# that fit any program are left out.
LARGE = 0.1


class Kind(Enum):
    """The kinds of candidates, in the order in which they are told where their gains do not decide."""

    # As many devices as pay, which are fewer than were measured.
    DEVICES = auto()
    # The fastest choice with a gain that was measured without it.
    COMBINATION = auto()
    # The remedy of a cause that the record of a run names.
    CAUSE = auto()
    # Options against a part of the step, or against padding or a lack of memory.
    PART = auto()
    # Options that fit any program: against computing, stalls, and what no phase shows.
    GENERAL = auto()


@dataclass(frozen=True)
class Candidate:
    """Something to try next. Made by `candidates`."""

    # What to try, and the reason for it with its numbers; without a full stop.
    sentence: str
    kind: Kind
    # About the share of the time that is saved at most, from 0 to 1, which decides the order; None if it is not known.
    # Of a cause it is `Diagnosis.order_share`.
    share: float | None = None

    @property
    def is_specific(self) -> bool:
        """True unless it fits any program."""
        return self.kind is not Kind.GENERAL


def candidates(
    report: BottleneckReport, parts: Sequence[BottleneckAdvice], causes: Sequence[Diagnosis]
) -> list[Candidate]:
    """Return what to try against the causes and bottlenecks of a configuration, what gains most first.

    A bottleneck that a cause explains is no candidate of its own, unless its cost was measured. For a program that
    nobody is to edit, the options against the bottleneck take the place of the remedy.

    `parts`: the bottlenecks of `report`, in the same order, in words.
    """
    found = []
    of_bottlenecks = dict(zip((bottleneck.name for bottleneck in report.bottlenecks), parts, strict=True))
    for cause in causes:
        part = of_bottlenecks.get(cause.part or "")
        sentence = cause.sentence
        if part is not None and part.options and not report.configuration.program.is_editable:
            sentence = f"{_named(part)}, since {cause.cause}"
        found.append(Candidate(sentence, Kind.CAUSE, cause.order_share))
    explained = {cause.part for cause in causes}
    for bottleneck, part in zip(report.bottlenecks, parts, strict=True):
        if part.options and (part.measured or bottleneck.name not in explained):
            found.append(_against(bottleneck, part, report))
    return in_order(found)


def against_exchange(
    report: BottleneckReport, measured: Sequence[Configuration], facts: FactsByConfiguration
) -> list[Candidate]:
    """Return options against exchanging gradients, for a step that does not tell this from computing; else nothing."""
    if StepPart.COMPUTE_OR_COMMUNICATION not in report.parts:
        return []
    exchange = Bottleneck(StepPart.COMMUNICATION, report.parts[StepPart.COMPUTE_OR_COMMUNICATION], "")
    options = options_against(report.configuration, exchange, measured, facts).untried[:MOST_OPTIONS]
    if not options:
        return []
    reason = "if the exchange of gradients takes the time, which runs without it show (`ablate: communication`)"
    return [Candidate(f"{listed(options, 'or')}, {reason}", Kind.PART)]


def in_order(found: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in the order in which they are told, without those that fit any program beside a large one.

    A specific candidate is large if it takes `LARGE` of the time, or if it is a cause whose share is not known. A cause
    comes before a part of the step of which it may be half, because its remedy is known.

    >>> loading, garbage = Candidate("workers", Kind.PART, 0.5), Candidate("gc.freeze()", Kind.CAUSE, 0.3)
    >>> [candidate.sentence for candidate in in_order([Candidate("bf16", Kind.GENERAL), loading, garbage])]
    ['gc.freeze()', 'workers']
    """
    has_large = any(_is_large(candidate) for candidate in found)
    told = [candidate for candidate in found if candidate.is_specific or not has_large]
    return sorted(told, key=_sort_key)


def _is_large(candidate: Candidate) -> bool:
    if candidate.share is None:
        return candidate.kind is Kind.CAUSE
    return candidate.is_specific and candidate.share >= LARGE


def _sort_key(candidate: Candidate) -> tuple[bool, float, int]:
    """Return the key that sorts candidates: general ones last; among the others those with a known share first."""
    weight = 2 if candidate.kind is Kind.CAUSE else 1
    share = 0.0 if candidate.share is None or not candidate.is_specific else candidate.share
    return not candidate.is_specific, -weight * share, candidate.kind.value


def _against(bottleneck: Bottleneck, part: BottleneckAdvice, report: BottleneckReport) -> Candidate:
    """Return the options against a bottleneck of a report, with the reason."""
    if part.measured:
        reason = part.measured
    else:
        reason = f"{_reason(bottleneck, report)}{f'; {part.bound}' if part.bound else ''}"
    fits_any_program = bottleneck.name == StepPart.STALLS or (part.gain is None and bottleneck.name != "memory")
    share = None if part.gain is None else 1 - 1 / part.gain
    return Candidate(f"{_named(part)}, since {reason}", Kind.GENERAL if fits_any_program else Kind.PART, share)


def _named(part: BottleneckAdvice) -> str:
    """Return the first options against a bottleneck in words."""
    return listed(part.options[:MOST_OPTIONS], "or")


def _reason(bottleneck: Bottleneck, report: BottleneckReport) -> str:
    if bottleneck.name == "memory":
        return "it needs too much memory"
    share = percent(bottleneck.share)
    if bottleneck.name == "padding":
        return f"{share} of the tokens are padding"
    name = unseen(report) if bottleneck.name == StepPart.OTHER else bottleneck.name
    return f"{share} of the {report.whole} is {name}"

"""What an option has gained where it was measured: in the configuration in question, or in another one of its job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from multicard.answers.bottlenecks.situation import job_of
from multicard.answers.choice.choices import NO_CHOICE
from multicard.answers.gain import WORTHWHILE
from multicard.config.wording import statement
from multicard.results.configuration import OBSERVATION, Configuration
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import ratio_of
from multicard.stats.selection import chosen_among

if TYPE_CHECKING:
    from multicard.answers.bottlenecks.options import TuningOption


@dataclass(frozen=True)
class MeasuredOption:
    """The speed of a configuration with an option over that of the same configuration without it."""

    # The option with the values that were measured, such as "num_workers: 4".
    name: str
    # None if the speed of either is not known.
    ratio: Interval | None
    # How the configuration without the option differs from the one in question, in words; empty if it is that one.
    where: str

    @property
    def is_open(self) -> bool:
        """True if the option may help in spite of its result: it was measured elsewhere only, and not without a gain.

        A gain elsewhere that is not shown, as by a single repeat, leaves it open.
        """
        if not self.where:
            return False
        return self.ratio is None or self.is_shown or self._seems_worthwhile

    @property
    def is_shown(self) -> bool:
        """True if the option is shown to gain."""
        return verdict(self.ratio) == "more"

    @property
    def _seems_worthwhile(self) -> bool:
        return self.ratio is not None and verdict(self.ratio) != "less" and self.ratio.value >= WORTHWHILE

    @property
    def place_words(self) -> str:
        """The result with the place where it was measured: "measured with devices: 1: 1.25× (n=1)"; may be empty."""
        return "" if self.ratio is None else f"measured with {self.where}: {self.ratio.format(unit='×')}"

    @property
    def words(self) -> str:
        """The option with its result, in Markdown; empty if that is not known."""
        if self.ratio is None:
            return ""
        where = f" (with {self.where})" if self.where else ""
        text = f"`{self.name}`{where}: {self.ratio.format(unit='× as fast')}"
        return f"{text}, no difference shown" if verdict(self.ratio) == "none" else text


def result_of(
    configuration: Configuration, option: "TuningOption", changed: set[str], measured: Sequence[Configuration]
) -> MeasuredOption | None:
    """Return what an option gained, in the configuration itself if that was measured, else elsewhere; None if nowhere.

    Elsewhere is the most similar configuration of the job that ran with and without the option. If several values of
    the option were measured in the configuration itself, the result is that of the fastest. Runs of other lengths count
    as the same configuration (`NO_CHOICE`), but runs of equal length are compared, where there are any.

    `changed`: the parameters of the option, and those that follow from them. `measured`: all configurations that ran.
    """
    of_job = [other for other in measured if other.completed and job_of(other) == job_of(configuration)]
    starts = [other for other in of_job if all(other[name] == configuration[name] for name in option.changes)]
    pairs: list[_Pair] = []
    for ignored in (OBSERVATION, NO_CHOICE):
        same = {*changed, *ignored}
        pairs += [
            _Pair(start, end) for start in starts for end in of_job if _differs_in_option(end, option, start, same)
        ]
    own = [pair for pair in pairs if pair.is_of(configuration, changed)]
    if own:
        return _fastest(option, own)
    if not pairs:
        return None
    pair = min(pairs, key=lambda pair: len(_unlike(configuration, pair.without, changed)))
    where = pair.without.naming(_unlike(configuration, pair.without, changed))
    return MeasuredOption(_values(option, pair.with_option), pair.ratio, where)


class _Pair(NamedTuple):
    """Two configurations that differ in an option."""

    without: Configuration
    with_option: Configuration

    @property
    def ratio(self) -> Interval | None:
        """The speed with the option over that without it; None if either is not known."""
        rate = self.without.rate
        return ratio_of(self.with_option.blocks(rate), self.without.blocks(rate))

    def is_of(self, configuration: Configuration, changed: set[str]) -> bool:
        """True if the one without the option is a configuration, or differs from it in `NO_CHOICE` alone."""
        ignored = {*changed, *NO_CHOICE}
        return self.without is configuration or self.without.rest(ignored) == configuration.rest(ignored)


def has_option(other: Configuration, option: "TuningOption", before: Configuration) -> bool:
    """True if `other` has the values that the option makes of the values of `before`."""
    return all(option.is_changed(name, other[name], before[name]) for name in option.changes)


def _fastest(option: "TuningOption", pairs: Sequence[_Pair]) -> MeasuredOption:
    """Return the result of the fastest of the values that were measured. `pairs`: those of equal length come first."""
    ratios: dict[str, Interval] = {}
    for pair in pairs:
        ratio = pair.ratio
        if ratio is not None:
            ratios.setdefault(_values(option, pair.with_option), ratio)
    if not ratios:
        return MeasuredOption(option.name, None, "")
    name = max(ratios, key=lambda name: ratios[name].value)
    return MeasuredOption(name, chosen_among(ratios[name], len(ratios)), "")


def _values(option: "TuningOption", configuration: Configuration) -> str:
    values: Mapping[str, Any] = {name: configuration[name] for name in option.changes}
    return ", ".join(statement(name, value) for name, value in values.items())


def _unlike(configuration: Configuration, other: Configuration, besides: set[str]) -> list[str]:
    """Return the parameters in which two configurations differ, except `besides` and `NO_CHOICE`."""
    ignored = {*besides, *NO_CHOICE}
    compared = [name for name in configuration.parameters if name not in ignored]
    return [name for name in compared if other[name] != configuration[name]]


def _differs_in_option(other: Configuration, option: "TuningOption", before: Configuration, ignored: set[str]) -> bool:
    """True if `other` is `before` with the option. `ignored`: parameters that may differ, also those of the option."""
    is_other = other is not before
    return is_other and has_option(other, option, before) and other.rest(ignored) == before.rest(ignored)

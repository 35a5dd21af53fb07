"""A next run that was not made: the fastest choice with a gain that was measured on another configuration.

On 1 process, layout nhwc was faster than nchw, and with nchw 2 processes were faster than 1. If 2 processes with nhwc
were not run, whether both gains add up is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from multicard.answers.bottlenecks.options import is_possible
from multicard.answers.choice.answers import FASTER, speedups
from multicard.answers.choice.choices import NO_CHOICE, Choices
from multicard.answers.gain import WORTHWHILE
from multicard.config.experiment import configuration_key
from multicard.config.wording import stated_value, statement
from multicard.results.configuration import Configuration
from multicard.runs.parameters import ARGS_PREFIX, nested
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import ratio_of


@dataclass(frozen=True)
class _MeasuredGain:
    """Two configurations that differ in one parameter, of which the second is shown to be faster."""

    without: Configuration
    with_value: Configuration
    parameter: str
    # Names and values of all parameters that differ: `parameter`, and those that follow from it.
    changes: Mapping[str, Any]
    ratio: Interval  # speed of the second over that of the first


@dataclass(frozen=True)
class Combination:
    """A configuration that was not run: the fastest choice with a gain measured elsewhere. Made by `combination`."""

    fastest: Configuration
    changes: Mapping[str, Any]  # new values of the fastest choice's parameters, by name
    sentence: str  # what was not run, the gain with its interval, and what to add to which scenario, as Markdown


def combination(job: Choices) -> Combination | None:
    """Return the combination with the largest gain; None if everything worthwhile was run, also if it failed."""
    fastest = job.fastest
    if fastest is None:
        return None
    about = fastest.configuration
    gains = [gain for gain in _measured_gains(job) if _is_missing(job, about, gain)]
    if not gains:
        return None
    gain = max(gains, key=lambda gain: gain.ratio.value)
    return Combination(about, gain.changes, _words(job, about, gain))


def _measured_gains(job: Choices) -> list[_MeasuredGain]:
    """Return the shown gains of the fastest of each family over its other choices, and of devices over one device.

    A gain has to be shown twice: where choices are compared, allowing for all of them, and by the interval of its own
    two configurations, which the sentence states.
    """
    pairs: list[tuple[Configuration, Configuration]] = []
    for row in job.rows:
        if row.is_worse and row.trains_like_reference:
            best = next(other for other in job.rows if other.family == row.family and other.ratio is None)
            pairs.append((row.configuration, best.configuration))
    baselines = {speedup.configuration.key: speedup.baseline for speedup in job.speedups}
    for chosen in speedups(job):
        baseline = baselines[chosen.choice.key]
        if baseline is not None and verdict(chosen.ratio) == "more":
            pairs.append((baseline, chosen.choice.configuration))
    gains = [_gain(job, without, with_value) for without, with_value in pairs]
    shown = [gain for gain in gains if gain is not None and verdict(gain.ratio) == "more"]
    return [gain for gain in shown if gain.ratio.value >= WORTHWHILE]


def _gain(job: Choices, without: Configuration, with_value: Configuration) -> _MeasuredGain | None:
    """Return the gain of the second configuration over the first; None if they differ in several parameters."""
    parameters = job.differing([without, with_value])
    rate = without.rate
    ratio = ratio_of(with_value.blocks(rate), without.blocks(rate))
    if len(parameters) != 1 or ratio is None:
        return None
    changes = {name: with_value[name] for name in _unlike(without, with_value)}
    return _MeasuredGain(without, with_value, parameters[0], changes, ratio)


def _is_missing(job: Choices, about: Configuration, gain: _MeasuredGain) -> bool:
    """True if a configuration can have a gain but does not, and no run of the job has tried that."""
    if any(about[name] != gain.without[name] for name in gain.changes):
        return False
    combined = {**about.parameters, **gain.changes}
    ignored = {*NO_CHOICE, "repeat"}
    tried = [configuration_key(other.parameters, ignored) for other in (*job.configurations, *job.lost)]
    if configuration_key(combined, ignored) in tried:
        return False
    stated = {name: value for name, value in combined.items() if value is not None}
    try:
        return is_possible(about.program.parameters.model_validate(nested(stated)))
    except ValidationError:
        return False


def _words(job: Choices, about: Configuration, gain: _MeasuredGain) -> str:
    """Return in Markdown what was not run, what the gain was elsewhere, and what to add to which scenario."""
    name = gain.parameter
    elsewhere = _unlike(about, gain.without)
    combined = _name(job, {**about.parameters, **gain.changes}, [*elsewhere, name])
    place = f"{'on' if 'devices' in elsewhere else 'with'} {_name(job, gain.without.parameters, elsewhere)}"
    after = _name(job, gain.with_value.parameters, [name])
    before = _name(job, gain.without.parameters, [name])
    times_as_fast = gain.ratio.format(unit=f"{FASTER} as {before}")
    scenario = next(iter(about.runs[0].scenarios), "")
    values = [*_values_in(job, scenario, name, about), gain.changes[name]]
    line = f"{name.removeprefix(ARGS_PREFIX)}: [{', '.join(map(stated_value, values))}]"
    of_scenario = f" of scenario {scenario}" if scenario else ""
    return (
        f"not run yet: {combined}; measured {place}: {after} {times_as_fast}; "
        f"to run both together, put `{line}` under vary (not fixed){of_scenario}"
    )


def _name(job: Choices, parameters: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return values of parameters in words, the devices first: "2 GPUs with layout: nhwc"."""
    names = list(names)
    others = ", ".join(statement(name, parameters.get(name)) for name in names if name != "devices")
    devices = job.on(parameters["devices"]) if "devices" in names else ""
    return " with ".join(words for words in (devices, others) if words)


def _values_in(job: Choices, scenario: str, name: str, about: Configuration) -> Sequence[Any]:
    """Return the values of a parameter that a scenario has run; those of `about` if the scenario is not known."""
    of_scenario = [
        configuration[name]
        for configuration in job.configurations
        if scenario in {owner for run in configuration.runs for owner in run.scenarios}
    ]
    return list(dict.fromkeys(of_scenario or [about[name]]))


def _unlike(first: Configuration, second: Configuration) -> list[str]:
    """Return the parameters, except `NO_CHOICE`, in which two configurations differ."""
    names = dict.fromkeys((*first.parameters, *second.parameters))
    return [name for name in names if name not in NO_CHOICE and first[name] != second[name]]

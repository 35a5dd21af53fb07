"""The result of a scenario in one sentence: the gain by more devices, or how its configurations compare."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from multicard.answers.answer import HOW_LONG, HOW_MANY, WHICH, Answer
from multicard.answers.scaling.speedup import Speedup, implausible, speedups_of
from multicard.answers.scaling.superlinear import superlinear_caveat
from multicard.answers.scaling.work import STEP_TIME
from multicard.config.figures import FIGURES
from multicard.core.text import counted
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.core.values import Row
from multicard.results.configuration import Block, Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval, interval_columns, verdict
from multicard.stats.pool import Pool, pooled
from multicard.stats.samples import geometric_mean

# The word for one device, by the kind of device.
ONE_DEVICE = {"cpu": "process", "cuda": "GPU"}
# Where a user states the samples of a step that multicard could not count.
STATES_SAMPLES = "--samples-per-step or --samples-per-device"
TABLE_STATES_SAMPLES = "the column samples_per_step of the table of traces"
NO_SAMPLES = "speed-up unknown, since the samples of a step are not: state them"


NO_STEP = Answer(HOW_LONG, "no step was measured")


def headline(results: Results) -> Answer:
    """Return the answer that one scenario gives, with the number that it states.

    If runs completed on several numbers of devices, it is the speed-up (`speedups_of`) on the largest number for which
    one is known. If several configurations ran on that number, it is the geometric mean of their speed-ups, with their
    range.

    Otherwise, or if no speed-up is known, it is the ratio of two speeds: work over time, or steps over time if the work
    of some configuration is not known. Of two configurations the speed of the second is divided by that of the first.
    Of more configurations the speed of the fastest is divided by that of the next one; the p-value takes into account
    that the same values picked the fastest. If there is nothing to compare, the answer is the time of a step.
    """
    completed = [configuration for configuration in results.configurations() if configuration.completed]
    if not completed:
        return Answer(HOW_LONG, "no run completed")
    if len({configuration["devices"] for configuration in completed}) > 1:
        gain = _gain_by_devices(completed)
        if gain is not None:
            return gain
    return _comparison(completed)


def _gain_by_devices(configurations: Sequence[Configuration]) -> Answer | None:
    """Return the speed-up on the most devices; None if none is known.

    If the work of a step is not known of any configuration, the answer says what to state.
    """
    if not any(configuration.blocks(configuration.rate) for configuration in configurations):
        is_from_traces = bool(configurations[0].values("traced_devices"))
        where = TABLE_STATES_SAMPLES if is_from_traces else STATES_SAMPLES
        return Answer(HOW_MANY, f"{NO_SAMPLES} ({where})")
    measured = [
        speedup
        for speedup in speedups_of(configurations)
        if speedup.configuration["devices"] > 1 and speedup.mean is not None
    ]
    if not measured:
        return None
    devices, device = max(map(_devices_and_kind, measured))
    largest = [speedup for speedup in measured if _devices_and_kind(speedup) == (devices, device)]
    times = [speedup.mean.value for speedup in largest if speedup.mean]
    value = _mean_of(largest, times)
    if value is None:
        return None
    words = f"{_count(devices, device)} {value.format(unit='×')}"
    if len(largest) > 1:
        words += f" on average over {len(largest)} configurations ({number(min(times))}× to {number(max(times))}×)"
    doubt = implausible(value.value, devices)
    words += f", {doubt or f'{percent(value.value / devices)} efficient'}"
    if verdict(value) == "none":
        words += ", no difference shown"
    return Answer(HOW_MANY, words, (_row("speedup", value, ("devices",)),), _caveats(largest), "speedup")


def _caveats(speedups: Sequence[Speedup]) -> tuple[str, ...]:
    """Return which speed-ups are more than ideal and what to look at, each with its configuration if there are several.

    They have the same number of devices.
    """
    varied = _varied([speedup.configuration for speedup in speedups])
    caveats = []
    for speedup in speedups:
        caveat = superlinear_caveat(speedup)
        if caveat is not None:
            caveats.append(f"{speedup.configuration.naming(varied)}: {caveat}" if varied else caveat)
    return tuple(caveats)


def _devices_and_kind(speedup: Speedup) -> tuple[int, str]:
    return speedup.configuration["devices"], speedup.configuration["device"]


def _mean_of(speedups: Sequence[Speedup], times: Sequence[float]) -> Interval | None:
    """Return the one speed-up, or the geometric mean of several; `times` are their values.

    The interval of a mean is that over the repeats that all speed-ups have. Without such a repeat it has no bounds.
    """
    if len(speedups) == 1:
        return speedups[0].mean
    over_repeats = pooled([speedup.by_repeat for speedup in speedups])
    if over_repeats is not None:
        return over_repeats
    mean = geometric_mean(times)
    return None if mean is None else Interval(mean, None, None, 0)


class _Measured(NamedTuple):
    """A configuration, its position in the scenario, and its geometric mean speed: work or steps per second."""

    position: int
    configuration: Configuration
    speed: float


def _comparison(configurations: Sequence[Configuration]) -> Answer:
    """Return how the two fastest configurations compare, or the step time if there is nothing to compare."""
    varied = _varied(configurations)
    speeds = {configuration.key: configuration.blocks(configuration.rate) for configuration in configurations}
    by_steps = not all(speeds.values())
    if by_steps:
        speeds = {configuration.key: _steps_per_s(configuration) for configuration in configurations}
    pool = Pool(speeds)
    fastest_first = _fastest_first(configurations, pool)
    if not fastest_first:
        return NO_STEP
    if len(fastest_first) == 1 or not varied:
        return _step_time(configurations, fastest_first[0].configuration)
    ratio: Interval | None
    if len(fastest_first) == 2:
        base, chosen = sorted(fastest_first, key=lambda measured: measured.position)
        ratio = pool.ratio(chosen.configuration.key, base.configuration.key)
        rank = ""
    else:
        chosen, base = fastest_first[:2]
        # This is the speed of the next one over that of the fastest. The answer states the inverse.
        [slower] = pool.against_best(chosen.configuration.key, [base.configuration.key], len(fastest_first))
        ratio = slower and slower.map(lambda times: 1 / times)
        rank = "the fastest, "
    if ratio is None:
        return NO_STEP
    chosen_name = _name(chosen.configuration, varied)
    base_name = _name(base.configuration, varied)
    if verdict(ratio) == "none":
        words = f"no difference shown between {chosen_name} and {base_name}: {ratio.format(unit='×')}"
    else:
        per_step = " per step" if by_steps else ""
        words = f"{chosen_name} {rank}{ratio.format(unit=f'× as fast{per_step} as {base_name}')}"
    return Answer(WHICH, words, (_row("speed_ratio", ratio, varied),), figure=_figure_of_gain(varied))


def _varied(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Return the parameters in which configurations differ."""
    parameters = pd.DataFrame([dict(configuration.parameters) for configuration in configurations])
    return tuple(configurations[0].program.varying(parameters, list(parameters)))


def _steps_per_s(configuration: Configuration) -> dict[Block, float]:
    return {block: 1 / step_s for block, step_s in configuration.blocks(STEP_TIME).items()}


def _fastest_first(configurations: Sequence[Configuration], pool: Pool) -> list[_Measured]:
    """Return the configurations that have a speed in the pool, the fastest first."""
    measured = []
    for position, configuration in enumerate(configurations):
        mean = pool.mean(configuration.key)
        if mean and mean.value:
            measured.append(_Measured(position, configuration, mean.value))
    return sorted(measured, key=lambda candidate: candidate.speed, reverse=True)


def _step_time(configurations: Sequence[Configuration], configuration: Configuration) -> Answer:
    """Return the step time of one configuration. Its interval follows from the scatter of all configurations."""
    pool = Pool({other.key: other.blocks(STEP_TIME) for other in configurations})
    step_s = pool.mean(configuration.key)
    if step_s is None:
        return NO_STEP
    sentence = f"{step_s.format(lambda seconds: with_unit(seconds, SECONDS))} per step"
    return Answer(HOW_LONG, sentence, (_row(STEP_TIME, step_s),))


def _row(column: str, value: Interval, varied: Sequence[str] = ()) -> Row:
    """Return the number that a headline states, with the parameters that it compares."""
    return {"varied": ", ".join(varied), "repeats": value.repeats, **interval_columns(column, value)}


def _figure_of_gain(varied: Sequence[str]) -> str | None:
    """Return the name of the figure `gain_<parameter>` of the first varied parameter that has one; None if none has."""
    return next((name for name in (f"gain_{parameter}" for parameter in varied) if name in FIGURES), None)


def _name(configuration: Configuration, varied: tuple[str, ...]) -> str:
    """Return in words the values of a configuration that vary. A single value is shown without its parameter's name."""
    if varied == ("devices",):
        return _count(configuration["devices"], configuration["device"])
    name = configuration.naming(varied)
    return name.partition(": ")[2] if len(varied) == 1 else name


def _count(devices: int, device: str) -> str:
    return counted(devices, ONE_DEVICE[device])

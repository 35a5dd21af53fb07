"""The result of a scenario in one sentence: the gain by more devices, or how its configurations compare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from multicard.answers.ablation import cost_lines
from multicard.answers.ablation import costs as costs_of_parts
from multicard.answers.answer import HOW_LONG, HOW_MANY, WHICH, Answer
from multicard.answers.doubt import REMEDY, undecided_words
from multicard.answers.pools import pool_of
from multicard.answers.scaling.peak_memory import peak_memory_words
from multicard.answers.scaling.speedup import Speedup, implausible, speedups_of
from multicard.answers.scaling.superlinear import superlinear_caveat
from multicard.answers.scaling.work import PROCESSED_SAMPLES, STEP_TIME, is_same_work, samples_per_device
from multicard.config.figures import FIGURES
from multicard.core.text import counted
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.core.values import Row
from multicard.results.configuration import Block, Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval, interval_columns, verdict
from multicard.stats.pool import Pool

# The word for one device, by the kind of device.
ONE_DEVICE = {"cpu": "process", "cuda": "GPU"}
# Where a user states the samples of a step that multicard could not count.
STATES_SAMPLES = "--samples-per-step or --samples-per-device"
TABLE_STATES_SAMPLES = "the column samples_per_step of the table of traces"
# An answer names at most this many configurations beside the first; of more, the first ones and the last.
MOST_LISTED = 4
NO_SAMPLES = "speed-up unknown, since the samples of a step are not: state them"


NO_STEP = Answer(HOW_LONG, "no step was measured")


def headline(results: Results) -> Answer:
    """Return the answer that one scenario gives, with the numbers that it states.

    If runs completed on several numbers of devices, it is the speed-up (`speedups_of`) on the largest number for which
    one is known. If several configurations ran on that number, each has its own, and the answer says which gains most,
    or which two cannot be told apart.

    Otherwise, or if no speed-up is known, it is the ratio of two speeds: work over time, or steps over time if the work
    of some configuration is not known. Of two configurations the speed of the second is divided by that of the first.
    Of more configurations the speed of the fastest is divided by that of each other one; the p-values take into account
    that the same values picked the fastest. If there is nothing to compare, the answer is the time of a step.

    The peak memory follows if methods are compared, then what parts of the step cost, if there are runs without them.
    """
    completed = [configuration for configuration in results.configurations() if configuration.completed]
    if not completed:
        return Answer(HOW_LONG, "no run completed")
    main = _main_answer(completed)
    added = [words for words in (_memory_words(completed), *cost_lines(costs_of_parts(results))) if words]
    return replace(main, sentence="; ".join([main.sentence, *added]))


def _main_answer(completed: Sequence[Configuration]) -> Answer:
    if len({configuration["devices"] for configuration in completed}) > 1:
        gain = _gain_by_devices(completed)
        if gain is not None:
            return gain
    return _comparison(completed)


def _memory_words(completed: Sequence[Configuration]) -> str:
    """Return the peak memory of configurations on the most devices, if their methods differ; else an empty text."""
    most = max(configuration["devices"] for configuration in completed)
    compared = [configuration for configuration in completed if configuration["devices"] == most]
    varied = _varied(compared)
    return peak_memory_words(compared, completed, lambda configuration: _name(configuration, varied))


class _Gain(NamedTuple):
    """A configuration on the most devices, with its speed-up over one device."""

    speedup: Speedup
    ratio: Interval  # the mean of the speed-up


def _gain_by_devices(configurations: Sequence[Configuration]) -> Answer | None:
    """Return the speed-up on the most devices; None if none is known.

    If the work of a step is not known of any configuration, the answer says what to state.
    """
    if not any(configuration.blocks(configuration.rate) for configuration in configurations):
        is_from_traces = bool(configurations[0].values("traced_devices"))
        where = TABLE_STATES_SAMPLES if is_from_traces else STATES_SAMPLES
        return Answer(HOW_MANY, f"{NO_SAMPLES} ({where})")
    measured = [
        _Gain(speedup, speedup.mean)
        for speedup in speedups_of(configurations)
        if speedup.configuration["devices"] > 1 and speedup.mean is not None
    ]
    if not measured:
        return None
    most = max(_devices_and_kind(gain.speedup) for gain in measured)
    largest = [gain for gain in measured if _devices_and_kind(gain.speedup) == most]
    largest.sort(key=lambda gain: -gain.ratio.value)
    varied = _varied([gain.speedup.configuration for gain in largest])
    words = _gain_words(largest[0]) if len(largest) == 1 else _gains_words(largest, varied)
    words = "; ".join(filter(None, [words, _scaling_words([gain.speedup for gain in largest])]))
    rows = tuple(
        _row("speedup", gain.ratio, ("devices", *varied), gain.speedup.configuration.naming(varied)) for gain in largest
    )
    return Answer(HOW_MANY, words, rows, _caveats([gain.speedup for gain in largest]), "speedup")


def _gain_words(gain: _Gain) -> str:
    """Return the only speed-up in words, or why it does not show that more devices are faster."""
    devices, device = _devices_and_kind(gain.speedup)
    words = _ratio_words(_count(devices, device), _baseline_words([gain]), gain.ratio, "× as fast")
    if verdict(gain.ratio) == "none":
        return words
    return f"{words}, {_efficiency_words(gain.ratio.value, devices)}"


def _gains_words(gains: Sequence[_Gain], varied: tuple[str, ...]) -> str:
    """Return in words which of several configurations gains most by the most devices, and what the others gain.

    `gains`: the largest first.
    """
    devices, device = _devices_and_kind(gains[0].speedup)
    names = [_name(gain.speedup.configuration, varied) for gain in gains]
    first_name = _full_name(gains[0].speedup.configuration, varied)
    one = _baseline_words(gains)
    first = gains[0].ratio
    efficiency = _efficiency_words(first.value, devices)
    texts = [f"{first_name} {first.format(unit=f'× as fast as {one}')}, {efficiency}"]
    texts += _listed_in_short(
        [
            f"{name} {_in_short(gain.ratio, '×')}{_doubt_in_short(gain.ratio)}"
            for name, gain in zip(names[1:], gains[1:], strict=True)
        ]
    )
    return f"on {_count(devices, device)}: {'; '.join(texts)}; {_which_gains_most(gains, names)}"


def _scaling_words(speedups: Sequence[Speedup]) -> str:
    """Return in words how a step grows with the devices, with its samples; empty unless all speed-ups agree in it."""
    sizes = {(speedup.scaling, _samples_of_device(speedup.configuration)) for speedup in speedups}
    [(scaling, samples), *others] = sizes
    if others or samples is None or scaling not in ("weak", "strong"):
        return ""
    devices, device = _devices_and_kind(speedups[0])
    of_step = number(devices * samples)
    if scaling == "strong":
        return f"strong scaling: {_count(devices, device)} share a batch of {of_step} samples"
    word = ONE_DEVICE[device]
    return (
        f"weak scaling: each {word} has a batch of {number(samples)}, so {devices} compute {of_step} samples per step"
    )


def _samples_of_device(configuration: Configuration) -> float | None:
    """Return the samples that a device computes in a step; None if samples were not counted."""
    if not configuration.blocks(PROCESSED_SAMPLES):
        return None
    samples = samples_per_device(configuration)
    # Measured rates are rounded, and the last batch of a pass may be smaller: such a mean is close to a whole number.
    is_whole = samples is not None and is_same_work(samples, round(samples))
    return round(samples) if samples is not None and is_whole else samples


def _baseline_words(gains: Sequence[_Gain]) -> str:
    """Return the baseline of gains in words: "1 GPU", with its method if all share one that is not their own."""
    method = gains[0].speedup.configuration.program.method
    baselines = {baseline[method] for gain in gains if (baseline := gain.speedup.baseline) is not None}
    own = {gain.speedup.configuration[method] for gain in gains}
    words = _count(1, gains[0].speedup.configuration["device"])
    return f"{words} ({baselines.pop()})" if len(baselines) == 1 and baselines != own else words


def _which_gains_most(gains: Sequence[_Gain], names: Sequence[str]) -> str:
    """Return in words whether the first gain is shown to be larger than the second one.

    Gains are compared by the repeats that both have.
    """
    looks = max(gain.speedup.configuration.looks for gain in gains)
    pool = Pool({gain.speedup.configuration.key: gain.speedup.by_repeat for gain in gains}, looks=looks)
    first, second = (gain.speedup.configuration.key for gain in gains[:2])
    [ratio] = pool.against_best(first, [second], len(gains))
    if verdict(ratio) == "less":
        return f"{names[0]} {'gains most' if gains[0].ratio.value > 1 else 'loses least'}"
    if ratio is None or verdict(ratio) == "unknown":
        return "with one repeat, which gains most may be noise"
    are_apart = f"which of {names[0]} and {names[1]} gains more is not decided"
    return f"{are_apart}; {REMEDY}" if ratio.is_wide else are_apart


def _in_short(ratio: Interval, unit: str) -> str:
    """Return a ratio in words without its interval."""
    value, _ = ratio.texts()
    return f"{value}{unit}"


def _doubt_in_short(ratio: Interval) -> str:
    """Return a word on a ratio that shows no difference from 1; empty for any other ratio."""
    return " (no difference shown)" if verdict(ratio) == "none" else ""


def _listed_in_short(texts: Sequence[str]) -> list[str]:
    """Return the texts, or the first ones, the number of those left out, and the last one.

    >>> _listed_in_short(["a 3×", "b 2×"]), _listed_in_short(["a 5×", "b 4×", "c 3×", "d 2×", "e 1×", "f 1×"])
    (['a 3×', 'b 2×'], ['a 5×', 'b 4×', 'c 3×', '2 more', 'last f 1×'])
    """
    if len(texts) <= MOST_LISTED:
        return list(texts)
    return [*texts[: MOST_LISTED - 1], f"{len(texts) - MOST_LISTED} more", f"last {texts[-1]}"]


def _efficiency_words(speedup: float, devices: int) -> str:
    return implausible(speedup, devices) or f"{percent(speedup / devices)} efficient"


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


class _Measured(NamedTuple):
    """A configuration, its position in the scenario, and its geometric mean speed: work or steps per second."""

    position: int
    configuration: Configuration
    speed: float


def _comparison(configurations: Sequence[Configuration]) -> Answer:
    """Return how configurations compare in speed, or the step time if there is nothing to compare."""
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
    unit = "× as fast per step" if by_steps else "× as fast"
    is_pair = len(fastest_first) == 2
    compared = _pair(fastest_first, pool, unit, varied) if is_pair else _fastest(fastest_first, pool, unit, varied)
    if compared is None:
        return NO_STEP
    return Answer(WHICH, *compared, figure=_figure_of_gain(varied))


def _pair(
    fastest_first: Sequence[_Measured], pool: Pool, unit: str, varied: tuple[str, ...]
) -> tuple[str, tuple[Row, ...]] | None:
    """Return the sentence on two configurations, and its number: the second over the first; None if that is unknown."""
    base, chosen = sorted(fastest_first, key=lambda measured: measured.position)
    ratio = pool.ratio(chosen.configuration.key, base.configuration.key)
    if ratio is None:
        return None
    names = _full_name(chosen.configuration, varied), _name(base.configuration, varied)
    return _ratio_words(*names, ratio, unit), (_row("speed_ratio", ratio, varied, names[0]),)


def _fastest(
    fastest_first: Sequence[_Measured], pool: Pool, unit: str, varied: tuple[str, ...]
) -> tuple[str, tuple[Row, ...]] | None:
    """Return the sentence on the fastest of several configurations, and its numbers: it over each other one.

    None if these are unknown.
    """
    fastest, *others = fastest_first
    slower = pool.against_best(
        fastest.configuration.key, [other.configuration.key for other in others], len(fastest_first)
    )
    names = [_name(measured.configuration, varied) for measured in fastest_first]
    # What is known is how fast the others are over the fastest; the answer states the inverse.
    ratios = [ratio and ratio.map(lambda times: 1 / times) for ratio in slower]
    known = [(name, ratio) for name, ratio in zip(names[1:], ratios, strict=True) if ratio is not None]
    if not known:
        return None
    (next_name, first), *rest = known
    is_decided = verdict(first) != "none"
    first_name = _full_name(fastest.configuration, varied)
    words = _ratio_words(f"{first_name} is the fastest," if is_decided else first_name, next_name, first, unit)
    if rest:
        texts = _listed_in_short(
            [f"{_in_short(ratio, unit)} as {name}{_doubt_in_short(ratio)}" for name, ratio in rest]
        )
        words += f"; {'' if is_decided else f'{names[0]} is '}{'; '.join(texts)}"
    rows = tuple(_row("speed_ratio", ratio, varied, f"{names[0]} over {name}") for name, ratio in known)
    return words, rows


def _ratio_words(name: str, base_name: str, ratio: Interval, unit: str) -> str:
    """Return in words how one configuration compares with another one, or why that is not known.

    `ratio`: the speed of the first over that of the second; `unit`: what follows its value, up to "as".
    """
    return undecided_words(name, base_name, ratio) or f"{name} {ratio.format(unit=f'{unit} as {base_name}')}"


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
    pool = pool_of(STEP_TIME, configurations)
    step_s = pool.mean(configuration.key)
    if step_s is None:
        return NO_STEP
    sentence = f"{step_s.format(lambda seconds: with_unit(seconds, SECONDS))} per step"
    return Answer(HOW_LONG, sentence, (_row(STEP_TIME, step_s),))


def _row(column: str, value: Interval, varied: Sequence[str] = (), compared: str = "") -> Row:
    """Return a number that a headline states. `varied`: the parameters that it compares; `compared`: their values."""
    row: Row = {"varied": ", ".join(varied), "repeats": value.repeats, **interval_columns(column, value)}
    return row | {"compared": compared} if compared else row


def _figure_of_gain(varied: Sequence[str]) -> str | None:
    """Return the name of the figure `gain_<parameter>` of the first varied parameter that has one; None if none has."""
    return next((name for name in (f"gain_{parameter}" for parameter in varied) if name in FIGURES), None)


def _full_name(configuration: Configuration, varied: tuple[str, ...]) -> str:
    """Return in words the values of a configuration that vary, with the names of their parameters."""
    if varied == ("devices",):
        return _count(configuration["devices"], configuration["device"])
    name = configuration.naming(varied)
    return name if len(varied) > 1 else name.replace(": ", " ", 1)


def _name(configuration: Configuration, varied: tuple[str, ...]) -> str:
    """Return what `_full_name` does, but a single value without its parameter, which the sentence has named before.

    A number or a truth value says nothing without it.
    """
    name = _full_name(configuration, varied)
    says_itself = len(varied) == 1 and isinstance(configuration[varied[0]], str)
    return name.partition(" ")[2] if says_itself else name


def _count(devices: int, device: str) -> str:
    return counted(devices, ONE_DEVICE[device])

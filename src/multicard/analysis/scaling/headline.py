"""What a scenario found, in one sentence: what more devices gain, or how what else it varies compares."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.scaling.speedup import implausible, speedups_of
from multicard.core.text import counted
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool, pooled
from multicard.stats.samples import geometric_mean

ONE_DEVICE = {"cpu": "process", "cuda": "GPU"}
STEP_TIME = "iteration_time_s"
NO_SAMPLES = "speed-up unknown, since the samples of a step are not: state them"


@dataclass(frozen=True)
class Headline:
    """The result of a scenario."""

    words: str  # it in a sentence, without a point at its end
    varied: tuple[str, ...] = ()  # what is compared: `devices`, or the parameters that vary; empty where nothing is
    # How many times as fast, with its interval; the step time in seconds where nothing is compared; None where nothing
    # is known.
    value: Interval | None = None


def headline(evidence: Evidence) -> Headline:
    """The result of one scenario.

    With several numbers of devices it is the speed-up of the largest that completed, by `scaling.speedups_of`: over
    several configurations the geometric mean, and their range. Else it is the ratio of speeds (work over time; of step
    times where the work is not known): of two configurations the second's to the first's, of more the fastest's to the
    next one's, tested as one that its own values chose.
    """
    done = [each for each in evidence.configurations if each.completed]
    if not done:
        return Headline("no run completed")
    return _speedup(done) or _comparison(done)


def _speedup(done: Sequence[Configuration]) -> Headline | None:
    if len({each["devices"] for each in done}) == 1:
        return None
    if not any(each.blocks(each.rate) for each in done):
        return Headline(f"{NO_SAMPLES} ({done[0].workload.states_samples_by})", ("devices",))
    known = [
        (found.configuration["devices"], found.configuration["device"], found)
        for found in speedups_of(done)
        if found.configuration["devices"] > 1 and found.over_blocks is not None
    ]
    if not known:
        return None
    devices, device = max((devices, device) for devices, device, _ in known)
    found = [each for *kind, each in known if kind == [devices, device]]
    ratios = [each.over_blocks.value for each in found if each.over_blocks]
    value = found[0].over_blocks if len(found) == 1 else pooled([each.by_repeat for each in found])
    if value is None:  # no block is in all of them
        mean = geometric_mean(ratios)
        if mean is None:
            return None
        value = Interval(mean, None, None, 0)
    words = f"{_devices(devices, device)} {value.format(unit='×')}"
    if len(found) > 1:
        words += f" on average over {len(found)} configurations ({number(min(ratios))}× to {number(max(ratios))}×)"
    words += f", {implausible(value.value, devices) or f'{percent(value.value / devices)} efficient'}"
    return Headline(words + (", no difference shown" if verdict(value) == "none" else ""), ("devices",), value)


def _comparison(done: Sequence[Configuration]) -> Headline:
    table = pd.DataFrame([dict(each.parameters) for each in done])
    varied = tuple(done[0].workload.varying(table, list(table)))
    samples, by_step = [each.blocks(each.rate) for each in done], not all(each.blocks(each.rate) for each in done)
    if by_step:
        samples = [{repeat: 1 / time for repeat, time in each.blocks(STEP_TIME).items()} for each in done]
    pool = Pool(samples)
    means = [pool.mean(index) for index in range(len(done))]
    values = {index: mean.value for index, mean in enumerate(means) if mean and mean.value}
    order = sorted(values, key=values.__getitem__, reverse=True)
    if not order:
        return Headline("no step was measured")
    if len(order) == 1 or not varied:
        step_s = Pool([each.blocks(STEP_TIME) for each in done]).mean(order[0])
        if step_s is None:
            return Headline("no step was measured")
        return Headline(f"{step_s.format(lambda seconds: with_unit(seconds, SECONDS))} per step", (), step_s)
    if len(order) == 2:
        this, base = max(order), min(order)
        value, rank = pool.ratio(this, base), ""
    else:
        this, base = order[:2]
        [slower], rank = pool.against_best(this, [base], len(order)), "the fastest, "
        value = slower and slower.map(lambda times: 1 / times)
    if value is None:
        return Headline("no step was measured")
    names = [each.naming(varied) for each in done]
    if varied == ("devices",):
        names = [_devices(each["devices"], each["device"]) for each in done]
    elif len(varied) == 1:
        names = [name.partition(": ")[2] for name in names]
    return Headline(_compared(names[this], names[base], value, rank, " per step" * by_step), varied, value)


def _compared(this: str, base: str, ratio: Interval, rank: str, unit: str) -> str:
    if verdict(ratio) == "none":
        return f"no difference shown between {this} and {base}: {ratio.format(unit='×')}"
    return f"{this} {rank}{ratio.format(unit=f'× as fast{unit} as {base}')}"


def _devices(number: int, kind: str) -> str:
    return counted(number, ONE_DEVICE[kind])

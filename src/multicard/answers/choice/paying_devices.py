"""How many devices pay: fewer than were measured, where more of them are no faster."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from multicard.answers.bottlenecks.options import LEARNS_OTHERWISE
from multicard.answers.choice.answers import FASTER, HOURS, ChosenSpeedup, doubt_of, speedups
from multicard.answers.choice.candidates import Candidate, Kind
from multicard.answers.choice.choices import Choices
from multicard.answers.choice.learning import words_of
from multicard.answers.doubt import scatter_words
from multicard.core.units import number
from multicard.programs.program import BATCH
from multicard.results.conditions import taken_cpus
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool
from multicard.stats.selection import chosen_among

# More devices that are not shown to be faster count as no faster up to this ratio; above it, they may be faster.
NO_FASTER = 1.05


class FewerDevices(NamedTuple):
    """As many devices as pay, where more were measured. Made by `fewer_devices`."""

    devices: int
    # The fastest larger number of devices, and its speed over that of `devices`.
    more_devices: int
    ratio: Interval


def fewer_devices(job: Choices) -> FewerDevices | None:
    """Return as many devices as pay, if more were measured that are no faster; None if the most pay, or without any.

    A number of devices pays if the next smaller one that pays is slower than it: shown to be, or by more than
    `NO_FASTER`, where repeats do not decide. So the smallest of several numbers that are equally fast is returned.
    """
    pool = job.rates
    by_devices = speedups(job)
    # None stands for one device.
    paying: ChosenSpeedup | None = None
    for speedup in by_devices:
        ratio = _speed_ratio(speedup, paying, pool)
        if ratio is not None and _may_be_faster(ratio):
            paying = speedup
    devices = 1 if paying is None else paying.choice.devices

    ratios: dict[int, Interval] = {}
    for speedup in by_devices:
        ratio = _speed_ratio(speedup, paying, pool)
        if speedup.choice.devices > devices and ratio is not None:
            ratios[speedup.choice.devices] = ratio
    if not ratios:
        return None
    more_devices = max(ratios, key=lambda count: ratios[count].value)
    return FewerDevices(devices, more_devices, ratios[more_devices])


def _speed_ratio(more: ChosenSpeedup, fewer: ChosenSpeedup | None, pool: Pool) -> Interval | None:
    """Return the speed on more devices over that on fewer, where None stands for one device."""
    if fewer is None:
        return more.ratio
    return pool.ratio(more.choice.key, fewer.choice.key)


def _may_be_faster(ratio: Interval) -> bool:
    """Return True if a ratio of speeds shows more, or leaves it open and is above `NO_FASTER`."""
    if verdict(ratio) == "more":
        return True
    return verdict(ratio) != "less" and ratio.value > NO_FASTER


def after_fewer_devices(
    job: Choices, fewer: FewerDevices, devices: int, trials: Sequence[Candidate], exchange: Sequence[Candidate]
) -> list[Candidate]:
    """Return candidates that begin with fewer devices; then follows what may make more of them worth it.

    Options that fit any program are left out beside it, since they make fewer devices faster, too. `devices`: the
    number of devices that `trials` are about. `exchange`: candidates where there are no others.
    """
    first = Candidate(_words(job, fewer), Kind.DEVICES)
    if devices <= fewer.devices:
        return [first, *trials]
    specific_trials = [candidate for candidate in trials if candidate.is_specific]
    on_more_devices = [*_other_training(job, fewer), *specific_trials] or exchange
    lead = f"on {job.on(devices)}: "
    return [first, *(replace(candidate, sentence=f"{lead}{candidate.sentence}") for candidate in on_more_devices)]


def _other_training(job: Choices, fewer: FewerDevices) -> list[Candidate]:
    """Return the training, unlike the reference, for which `fewer.more_devices` were measured to pay.

    It is the one with the largest speed-up; the list is empty if they pay for no other training.
    """
    measured = []
    for row in job.rows:
        is_other_training = row.devices == fewer.more_devices and not row.trains_like_reference
        if is_other_training and row.speedup is not None:
            measured.append((row, row.speedup))
    if not measured:
        return []
    row, speedup = max(measured, key=lambda row_and_speedup: row_and_speedup[1].value)
    speedup = chosen_among(speedup, len(measured))
    if not _may_be_faster(speedup):
        return []
    # The global batch size grows with the number of devices, without being stated.
    changes = words_of({name: values for name, values in row.changes.items() if name != BATCH})
    times_as_fast = speedup.format(unit=f"{FASTER} as {job.on(1)} with it")
    return [Candidate(f"{changes} ({LEARNS_OTHERWISE}): {times_as_fast}", Kind.PART)]


def _words(job: Choices, fewer: FewerDevices) -> str:
    """Return as many devices as pay in words, with the reason."""
    few, more = job.on(fewer.devices), job.on(fewer.more_devices)
    disturbed = _disturbed(job, fewer)
    if scattered := scatter_words(fewer.ratio):
        return f"{few}: whether {more} are faster is {scattered}{disturbed}"
    few_are_faster = fewer.ratio.value < 1 / NO_FASTER or verdict(fewer.ratio) == "less"
    if few_are_faster:
        inverse = fewer.ratio.map(lambda times: 1 / times)
        times_as_fast = inverse.format(unit=f"{FASTER} as {more}")
        doubt = doubt_of(inverse)
        return f"{few}: {times_as_fast}{f', {doubt}' if doubt else ''}{disturbed}"
    ratio = fewer.ratio.format(unit="×")
    # Device hours for the same work: devices times time.
    hours_ratio = fewer.more_devices / fewer.devices / fewer.ratio.value
    hours = f"{number(hours_ratio)}× the {HOURS[job.device]}"
    return f"{few}: {more} are not shown to be faster, {ratio}, and take {hours}{disturbed}"


def _disturbed(job: Choices, fewer: FewerDevices) -> str:
    """Return in words what took CPUs from the processes that were compared, which slows many down more than few.

    Empty if nothing did, and on GPUs.
    """
    if job.device != "cpu":
        return ""
    compared = [row for row in job.rows if row.devices in (fewer.devices, fewer.more_devices)]
    for row in compared:
        for run in row.configuration.completed:
            cause = taken_cpus(str(run.values.get("disturbance")))
            if cause is not None:
                return f", while other programs took CPUs from them ({cause})"
    return ""

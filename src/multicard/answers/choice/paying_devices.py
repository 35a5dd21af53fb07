"""How many devices pay: fewer than were measured, where more of them are no faster."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from multicard.answers.bottlenecks.options import LEARNS_OTHERWISE
from multicard.answers.choice.answers import FASTER, HOURS, ChosenSpeedup, doubt_of, speedups
from multicard.answers.choice.candidates import Candidate, Kind
from multicard.answers.choice.choices import Choices
from multicard.answers.choice.learning import words_of
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
    more: int
    ratio: Interval


def fewer_devices(job: Choices) -> FewerDevices | None:
    """Return as many devices as pay, if more were measured that are no faster; None if the most pay, or without any.

    A number of devices pays if the next smaller one that pays is slower than it: shown to be, or by more than
    `NO_FASTER`, where repeats do not decide. So the smallest of several numbers that are equally fast is returned.
    """
    pool = Pool({row.key: row.configuration.blocks(row.configuration.rate) for row in job.rows})
    by_devices = speedups(job)
    paying: ChosenSpeedup | None = None  # None stands for one device
    for speedup in by_devices:
        ratio = _over(paying, speedup, pool)
        if ratio is not None and _may_be_faster(ratio):
            paying = speedup
    devices = 1 if paying is None else paying.choice.devices
    larger = [(speedup.choice.devices, _over(paying, speedup, pool)) for speedup in by_devices]
    ratios = [(count, ratio) for count, ratio in larger if count > devices and ratio is not None]
    if not ratios:
        return None
    more, ratio = max(ratios, key=lambda pair: pair[1].value)
    return FewerDevices(devices, more, ratio)


def _over(fewer: ChosenSpeedup | None, more: ChosenSpeedup, pool: Pool) -> Interval | None:
    """Return the speed on more devices over that on fewer, where None stands for one device."""
    if fewer is None:
        return more.ratio
    return pool.ratio(more.choice.key, fewer.choice.key)


def _may_be_faster(ratio: Interval) -> bool:
    return verdict(ratio) == "more" or (verdict(ratio) != "less" and ratio.value > NO_FASTER)


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
    specific = [candidate for candidate in trials if candidate.is_specific]
    others = [*_other_training(job, fewer), *specific] or exchange
    lead = f"on {job.on(devices)}: "
    return [first, *[replace(candidate, sentence=f"{lead}{candidate.sentence}") for candidate in others]]


def _other_training(job: Choices, fewer: FewerDevices) -> list[Candidate]:
    """Return the training, unlike the reference, for which as many devices as `fewer.more` were measured to pay.

    It is the one with the largest speed-up; none if they pay for no other training.
    """
    measured = [
        (row, row.speedup)
        for row in job.rows
        if row.devices == fewer.more and not row.trains_like_reference and row.speedup is not None
    ]
    if not measured:
        return []
    row, speedup = max(measured, key=lambda pair: pair[1].value)
    speedup = chosen_among(speedup, len(measured))
    if not _may_be_faster(speedup):
        return []
    changes = words_of({name: values for name, values in row.changes.items() if name != BATCH})
    times_as_fast = speedup.format(unit=f"{FASTER} as {job.on(1)} with it")
    return [Candidate(f"{changes} ({LEARNS_OTHERWISE}): {times_as_fast}", Kind.PART)]


def _words(job: Choices, fewer: FewerDevices) -> str:
    """Return as many devices as pay in words, with the reason."""
    few, more = job.on(fewer.devices), job.on(fewer.more)
    if fewer.ratio.value < 1 / NO_FASTER or verdict(fewer.ratio) == "less":
        inverse = fewer.ratio.map(lambda times: 1 / times)
        doubt = doubt_of(inverse)
        words = f"{few}: {inverse.format(unit=f'{FASTER} as {more}')}{f', {doubt}' if doubt else ''}"
        return f"{words}{_disturbed(job, fewer)}"
    ratio = fewer.ratio.format(unit="×")
    hours = f"{number(fewer.more / fewer.devices / fewer.ratio.value)}× the {HOURS[job.device]}"
    return f"{few}: {more} are not shown to be faster, {ratio}, and take {hours}{_disturbed(job, fewer)}"


def _disturbed(job: Choices, fewer: FewerDevices) -> str:
    """Return in words what took CPUs from the processes that were compared, which slows many down more than few.

    Empty if nothing did, and on GPUs.
    """
    if job.device != "cpu":
        return ""
    compared = [row for row in job.rows if row.devices in (fewer.devices, fewer.more)]
    runs = [run for row in compared for run in row.configuration.completed]
    causes = [cause for run in runs if (cause := taken_cpus(str(run.values.get("disturbance"))))]
    return f", while other programs took CPUs from them ({causes[0]})" if causes else ""

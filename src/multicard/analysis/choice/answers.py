"""What the table of choices says, in sentences: how many devices, which recipe, and what meets a deadline or budget."""

from collections.abc import Sequence

from multicard.analysis.choice.choices import Choice, Choices
from multicard.analysis.choice.demand import Demand
from multicard.analysis.choice.learning import changes_from, changes_words, learning_words
from multicard.analysis.choice.table import (
    ENERGY,
    HOURS,
    cost_of,
    duration_words,
    length_words,
    time_words,
)
from multicard.analysis.evidence import DEVICE_WORDS
from multicard.analysis.statistics import Interval, corrected, scaled, verdict
from multicard.core.text import counted, listed, plural
from multicard.core.units import number, with_unit
from multicard.experiment.parameters import nested
from multicard.experiment.workload import BATCH

MOST = 3  # trainings that learn otherwise, of which an answer is given
NOT_KNOWN = "not known"
DEADLINE_WORDS = {"met": "in time", "may miss": "may miss it", "missed": "too late"}
GOAL_WORDS = {
    "throughput": "fastest",
    "time_to_accuracy": "soonest at 98% accuracy",
    "energy": "least energy",
    "memory": "least memory",
}
COMPARED = {
    "throughput": "× as fast", "time_to_accuracy": "× the time", "energy": "× the energy", "memory": "× the memory",
}  # fmt: skip
VALUE_UNITS = {"time_to_accuracy": "s to 98% accuracy", "energy": "J per {}", "memory": "GB of peak memory per device"}


def speedups(job: Choices) -> list[tuple[Choice, Interval]]:
    """The fastest row of each number of devices that has a speed-up and learns as the reference does, with that.

    The p-values are corrected for their number.
    """
    alike = [each for each in job.rows if each.is_alike and each.speedup.value and each.devices > 1]
    rows = job.best_of_each_count(alike)
    return list(zip(rows, corrected([each.speedup for each in rows]), strict=True))


def speed_words(row: Choice, job: Choices, ratio: Interval) -> str:
    """How many times as fast as one device so many are; `ratio` has the p-value for all that are shown together."""
    one = "1 GPU" if job.device == "cuda" else "1"
    hours = f"{number(row.devices / ratio.value)}× the {HOURS[job.device]}"
    of = counted(row.devices, DEVICE_WORDS[job.device]) + (" (weak scaling)" if BATCH in row.changes else "")
    return f"{of}: {ratio.format(unit=f'× as fast as {one}')}, {doubt_words(ratio) or hours}"


def doubt_words(ratio: Interval) -> str:
    """Why a ratio shows no difference, by its corrected p-value; empty where it does.

    >>> doubt_words(Interval(0.98, 0.96, 0.99, 2, p_value=0.2)), doubt_words(Interval(1.01, 0.99, 1.02, 2, p_value=0.4))
    ('not significant among so many comparisons', 'no significant difference')
    """
    if verdict(ratio) == "unknown":
        return "one repeat, so it may be noise"
    if verdict(ratio) != "none":
        return ""
    return "no significant difference" if ratio.low <= 1 <= ratio.high else "not significant among so many comparisons"


def how_many(job: Choices) -> str:
    """How much faster each number of devices is than one, the fastest first; or why that is not known."""
    found = speedups(job)
    known = [each for each in job.rows if not each.refused]
    if not found:
        counts = sorted({each.devices for each in known})
        if not counts:
            return f"{NOT_KNOWN}: no completed run says its throughput"
        if len(counts) == 1:
            only = counted(counts[0], DEVICE_WORDS[job.device])
            return f"{NOT_KNOWN}: only {only} {'was' if counts[0] == 1 else 'were'} measured"
        return f"no run on one device to compare with; {_times(job)}"
    pairs = sorted(found, key=lambda pair: -pair[1].value)
    return "; ".join(speed_words(row, job, ratio) for row, ratio in pairs)


def _times(job: Choices) -> str:
    best = job.best_of_each_count(job.groups[0])
    return "; ".join(f"{counted(each.devices, DEVICE_WORDS[job.device])}: {time_words(each)}" for each in best)


def which(job: Choices, demand: Demand) -> list[str]:
    """The best of each number of devices on which several configurations of a training were measured, most first."""
    lines = []
    for best in sorted(job.rows, key=lambda each: (not each.is_alike, -each.devices)):
        rivals = [each for each in job.rows if each.ratio and job.are_rivals(each, best)]
        if not best.is_best or not rivals:
            continue
        where = counted(best.devices, DEVICE_WORDS[job.device])
        where += f" ({changes_words(best.changes)})" if best.changes else ""
        head = f"{GOAL_WORDS[demand.goal]} of {best.rivals} on {where}"
        nearest = min(rivals, key=lambda each: (each.is_worse, abs(each.ratio.value - 1)))
        standing = "worse" if nearest.is_worse else "not significantly worse"
        more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
        lines.append(
            f"{head}: {job.recipe(best)}, {value_words(best, job, demand)}; {standing}: {job.recipe(nearest)}, "
            f"{nearest.ratio.format(unit=COMPARED[demand.goal])}{more}"
        )
    return lines


def changed(job: Choices, demand: Demand) -> list[str]:
    """What a change of what is learned gains over the best without it, the most first."""
    rows = [each for each in job.rows if each.gain is not None and each.gain.value is not None]
    sign = -1 if demand.goal == "throughput" else 1
    lines = []
    for row in sorted(rows, key=lambda each: sign * each.gain.value):
        on = counted(row.devices, DEVICE_WORDS[job.device])
        doubt = f", {words}" if (words := doubt_words(row.gain)) else ""
        what = changes_words(changes_from(row.instead_of, row.learning))
        lines.append(f"{what}: {row.gain.format(unit=COMPARED[demand.goal])} on {on}{doubt}")
    return lines


def value_words(row: Choice, job: Choices, demand: Demand) -> str:
    """The value of the goal, with its interval."""
    value = scaled(row.value, 1e-9) if demand.goal == "memory" else row.value
    unit = VALUE_UNITS.get(demand.goal, f"{plural(2, job.unit)} per second").format(job.unit)
    return value.format(unit=f" {unit}")


def demanded(job: Choices, demand: Demand) -> list[str]:
    """What meets a demand: a sentence for the reference training, and for each other one if that may change."""
    if job.rows and demand.deadline_s and not job.length_known:
        what = f"the length of the training in {plural(2, job.unit)}"
        return [f"no answer: {what} was not recorded, `--samples N` states it"]
    told = {name for each in job.rows for name in each.changes}
    lines = []
    for group in job.groups[: 1 + MOST]:
        first = group[0]
        head = f"if you may change {changes_words(first.changes)}: " if first.changes else ""
        if told and not head:
            head = (
                f"with {learning_words({name: first.learning.get(name) for name in first.learning if name in told})}: "
            )
        lines.append(head + _answer(job, group, demand))
    return lines


def _answer(job: Choices, group: Sequence[Choice], demand: Demand) -> str:
    """What trainings with the same learning take on each number of devices, those that meet a deadline first."""
    counted_in = [each for each in group if not each.refused]
    if not counted_in:
        known = [each for each in group if not each.unknown]
        verdict = "none meets what is asked" if len(known) == len(group) else "none is known to meet what is asked"
        return f"{verdict}: {_why_refused(job, known or group)}"
    if not demand.deadline_s:
        best = sorted(job.best_of_each_count(group), key=lambda each: each.time_s.value)
        return "; ".join(f"{_devices(job, each)} ({_numbers(job, each, demand)})" for each in best)

    def rank(row: Choice) -> tuple[int, float]:
        verdict = row.deadline(demand.deadline_s)
        return list(DEADLINE_WORDS).index(verdict), row.device_hours if verdict == "met" else row.time_s.value

    best = {}
    for each in sorted(counted_in, key=rank):  # the cheapest that meets it, else that may, on each number
        best.setdefault(each.devices, each)
    parts = [
        f"{_devices(job, each)} {DEADLINE_WORDS[each.deadline(demand.deadline_s)]} ({_numbers(job, each, demand)})"
        for each in best.values()
    ]
    met = any(each.deadline(demand.deadline_s) == "met" for each in best.values())
    text = f"for a deadline of {duration_words(demand.deadline_s)}: {'' if met else 'none is sure; '}{'; '.join(parts)}"
    if met or job.device != "cuda" or group[0].changes:  # a prediction is of the settings of runs
        return text
    most = max(each.devices for each in job.rows)
    return f"{text}. `multicard recommend --devices {2 * most}` says what more may give"


def _why_refused(job: Choices, group: Sequence[Choice]) -> str:
    """Why trainings do not count; on which numbers of devices, unless on all for the same reason."""
    of_count: dict[int, dict[str, None]] = {}
    for each in group:
        of_count.setdefault(each.devices, {})[each.refused or ""] = None
    counts: dict[str, list[int]] = {}
    for count, reasons in of_count.items():
        counts.setdefault(" or ".join(reasons), []).append(count)
    if len(counts) == 1:
        return next(iter(counts))
    word = DEVICE_WORDS[job.device]
    return "; ".join(f"on {listed(list(map(str, own)))} {plural(max(own), word)}: {why}" for why, own in counts.items())


def _devices(job: Choices, row: Choice) -> str:
    devices = counted(row.devices, DEVICE_WORDS[job.device])
    equal = sum(job.are_rivals(each, row) and not each.is_worse and not each.refused for each in job.rows)
    others = f", or {counted(equal - 1, 'other')} that may be as good" if equal > 1 else ""
    return f"{devices} with {job.recipe(row)}{others}" if row.rivals > 1 else devices


def _numbers(job: Choices, row: Choice, demand: Demand) -> str:
    parts = [time_words(row), f"{number(row.device_hours)} {HOURS[job.device]}"]
    if row.energy_j:
        parts.append(with_unit(row.energy_j, ENERGY))
    if (cost := cost_of(row, demand)) is not None:
        parts.append(f"cost {number(cost)}")
    return ", ".join(parts)


def missing_words(job: Choices) -> str | None:
    """What to measure where one number of devices alone was, so that the others are of the same training."""
    if not job.rows or not job.rows[0].configuration.workload.launches:
        return None
    first = job.rows[0].configuration
    counts = {each.devices for each in job.rows}
    several = first.workload.on_several(first.parameters)
    if len(counts) > 1 and (not several or len({each.devices for each in job.groups[0]}) > 1):
        return None
    wanted = {"devices": sorted({1, 2, 4, *counts}), **nested(several)}
    stated = ", ".join(f"{name}: {value}" for name, value in wanted.items())
    return f"{stated}, the same on other numbers of devices, to learn how many it needs"


def basis(job: Choices) -> str:
    """What the times rest on."""
    windows = [seconds for each in job.rows for seconds in each.configuration.values("elapsed_s")]
    text = f"The training: {length_words(job)}."
    if not windows:
        return text
    least, longest = min(windows), max(each.time_s.value for each in job.rows)
    return (
        f"{text} Throughput was measured over {duration_words(least)} or more, and is taken to stay what it was"
        + (f" in a training up to {number(longest / least)} times as long" if longest > least else "")
        + "; start, tests and saving are not included."
    )

"""What the table of choices says, in sentences: how many devices, which recipe, and what meets a deadline or budget."""

from collections.abc import Sequence
from itertools import groupby
from statistics import geometric_mean

from multicard.analysis.choice.choices import Choice, Choices
from multicard.analysis.choice.demand import Demand
from multicard.analysis.choice.learning import changes_words, learning_words
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
from multicard.core.units import number, percent, with_unit
from multicard.experiment.parameters import nested
from multicard.experiment.workload import BATCH

MOST = 3  # alternatives that are spelled out
GOAL_WORDS = {
    "throughput": "fastest",
    "time_to_accuracy": "soonest at 98% accuracy",
    "energy": "least energy",
    "memory": "least memory",
}
COMPARED = {"throughput": "as fast", "time_to_accuracy": "the time", "energy": "the energy", "memory": "the memory"}
VALUE_UNITS = {"time_to_accuracy": "s to 98% accuracy", "energy": "J per {}", "memory": "GB of peak memory per device"}


def scaled_rows(job: Choices) -> list[Choice]:
    """The fastest row of each number of devices that has a speed-up and learns as the reference does.

    Under weak scaling the batch grows with the devices, so it may differ.
    """
    alike = [each for each in job.rows if not each.refused and set(each.changes) <= {BATCH} and each.speedup.value]
    own = groupby(sorted(alike, key=lambda each: each.devices), lambda each: each.devices)
    return [max(rows, key=lambda each: geometric_mean(each.rates.values())) for devices, rows in own if devices > 1]


def speed_words(row: Choice, job: Choices, ratio: Interval) -> str:
    """How many times as fast as one device so many are; `ratio` has the p-value for all that are shown together."""
    one = "1 GPU" if job.device == "cuda" else "1"
    doubts = {"none": "no significant difference", "unknown": "one repeat, so it may be noise"}
    hours = f"{number(row.devices / ratio.value)}× the {HOURS[job.device]}"
    of = counted(row.devices, DEVICE_WORDS[job.device])
    return f"{of}: {times_words(ratio, f'as fast as {one}')}, {doubts.get(verdict(ratio), hours)}"


def how_many(job: Choices) -> str:
    """How much faster each number of devices is than one, the fastest first; or why that is not known."""
    rows = scaled_rows(job)
    known = [each for each in job.rows if not each.refused]
    if not rows:
        counts = sorted({each.devices for each in known})
        if not counts:
            return "not known: no completed run says its throughput"
        if len(counts) == 1:
            only = counted(counts[0], DEVICE_WORDS[job.device])
            return f"not known: only {only} {'was' if counts[0] == 1 else 'were'} measured"
        return f"no run on one device to compare with; {_times(job)}"
    ratios = corrected([each.speedup for each in rows])
    pairs = sorted(zip(rows, ratios, strict=True), key=lambda pair: -pair[1].value)
    return "; ".join(speed_words(row, job, ratio) for row, ratio in pairs)


def _times(job: Choices) -> str:
    best = job.best_of_each_count(job.groups[0])
    return "; ".join(f"{counted(each.devices, DEVICE_WORDS[job.device])}: {time_words(each)}" for each in best)


def which(job: Choices, demand: Demand) -> list[str]:
    """The best of each number of devices on which several configurations of a training were measured."""
    lines = []
    for best in job.rows:
        if not best.is_best or best.rivals < 2:
            continue
        rivals = [each for each in job.rows if each.devices == best.devices and each.changes == best.changes]
        rivals = sorted((each for each in rivals if each.ratio), key=lambda each: abs(each.ratio.value - 1))
        where = counted(best.devices, DEVICE_WORDS[job.device])
        where += f" ({changes_words(best.changes)})" if best.changes else ""
        head = f"{GOAL_WORDS[demand.goal]} of {best.rivals} on {where}"
        text = f"{head}: {job.recipe(best)}, {value_words(best, job, demand)}"
        for standing, own in (("not significantly worse", False), ("worse", True)):
            named = [
                f"{job.recipe(each)}, {times_words(each.ratio, COMPARED[demand.goal])}"
                for each in rivals
                if each.is_worse is own
            ]
            if named:
                more = f" and {len(named) - 1} more" if len(named) > 1 else ""
                text += f"; {standing}: {named[0]}{more}"
        lines.append(text)
    return lines


def changed(job: Choices, demand: Demand) -> list[str]:
    """What a change of what is learned gains over the best without it, the most first."""
    rows = [each for each in job.rows if each.gain is not None and each.gain.value is not None]
    sign = -1 if demand.goal == "throughput" else 1
    lines = []
    for row in sorted(rows, key=lambda each: sign * each.gain.value):
        on = counted(row.devices, DEVICE_WORDS[job.device])
        doubt = {"none": ", no significant difference", "unknown": ", one repeat"}.get(verdict(row.gain), "")
        lines.append(f"{changes_words(row.changes)}: {times_words(row.gain, COMPARED[demand.goal])}{doubt} on {on}")
    return lines


def times_words(ratio: Interval, what: str) -> str:
    """A ratio in words, such as `0.93× as fast (95% CI 0.9 to 0.96, n=3)`."""
    first, _, rest = ratio.format().partition(" ")
    return f"{first}× {what} {rest}"


def value_words(row: Choice, job: Choices, demand: Demand) -> str:
    """The value of the goal, with its interval."""
    value = scaled(row.value, 1e-9) if demand.goal == "memory" else row.value
    unit = VALUE_UNITS.get(demand.goal, f"{plural(2, job.unit)} per second").format(job.unit)
    first, _, rest = value.format().partition(" ")
    return f"{first} {unit} {rest}"


def demanded(job: Choices, demand: Demand) -> list[str]:
    """What meets a demand: a sentence for the reference training, and for each other one if that may change."""
    if not job.rows:
        return []
    if not job.length_known and demand.deadline_s:
        return [
            f"no answer: the length of the training in {plural(2, job.unit)} was not recorded, `--samples N` states it"
        ]
    groups = job.groups
    lines = [_group_answer(job, group, demand, changes=index > 0) for index, group in enumerate(groups[: 1 + MOST])]
    if len(groups) > 1 + MOST:
        lines.append(f"{len(groups) - 1 - MOST} more choices of what is learned from a sample: `--json`")
    return lines


def _group_answer(job: Choices, group: Sequence[Choice], demand: Demand, changes: bool) -> str:
    """One sentence or two for trainings with the same learning."""
    head = f"if you may change {changes_words(group[0].changes)}" if changes else f"with {_reference_words(job)}"
    counts = [each for each in group if not each.refused]
    if not counts:
        known = [each for each in group if not each.unknown]
        verdict = "none meets what is asked" if len(known) == len(group) else "none is known to meet what is asked"
        return f"{head}: {verdict}: {_why_refused(job, known or group)}"
    best = job.best_of_each_count(group)
    words = _with_deadline(job, counts, best, demand, changes) if demand.deadline_s else _without(job, best, demand)
    if not changes and len({each.devices for each in group}) == 1 < len({each.devices for each in job.rows}):
        words += f". No other number of {plural(2, DEVICE_WORDS[job.device])} was measured with these"
    return f"{head}: {words}"


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


def _with_deadline(job: Choices, group: Sequence[Choice], best: Sequence[Choice], demand: Demand, changes: bool) -> str:
    limit = f"for a deadline of {duration_words(demand.deadline_s)}"
    verdicts = {id(each): each.deadline(demand.deadline_s) for each in group}
    met = [each for each in group if verdicts[id(each)] == "met"]
    if not met:
        may = [each for each in group if verdicts[id(each)] == "may miss"]
        fastest = min(may or best, key=lambda each: each.time_s.value)
        which, numbers = _devices(job, fastest), _numbers(job, fastest, demand)
        if may:
            return f"{limit}: none is sure to meet it; {which} ({numbers}) may miss it"
        answer = f"{limit}: none that was measured meets it; the fastest, {which}, misses it ({numbers})"
        # A prediction is of the settings of runs, so of the reference.
        return answer if changes or job.device != "cuda" else f"{answer}. {_predict_more(job)}"
    chosen = min(met, key=lambda each: (each.device_hours, each.devices))
    parts = [f"{limit}: {_devices(job, chosen)} ({_numbers(job, chosen, demand)})"]
    for each in best:
        if each.devices == chosen.devices:
            continue
        verdict = verdicts[id(each)]
        if verdict == "met":
            more = percent(each.device_hours / chosen.device_hours - 1, signed=True)
            time = duration_words(each.time_s.value) if each.time_s.high else time_words(each)
            parts.append(f"{_devices(job, each)}: {time}, {more} {HOURS[job.device]}")
        else:
            may = "may miss it" if verdict == "may miss" else f"miss{'es' if each.devices == 1 else ''} it"
            parts.append(f"{_devices(job, each)} {may} ({time_words(each)})")
    return "; ".join(parts)


def _predict_more(job: Choices) -> str:
    """How to learn what more devices than any that were measured would give."""
    most = max(job.rows, key=lambda each: each.devices)
    nodes = most.configuration["nodes"] or 1
    option = f"--devices {2 * most.devices}" + (f" --nodes {2 * nodes}" if nodes > 1 else "")
    return f"On more GPUs: `multicard predict` with your results and `{option}`"


def _without(job: Choices, best: Sequence[Choice], demand: Demand) -> str:
    fastest = min(best, key=lambda each: each.time_s.value)
    cheapest = min(best, key=lambda each: each.device_hours)
    words = f"{_devices(job, fastest)} ({_numbers(job, fastest, demand)})"
    if len(best) == 1:
        return words
    fewest = f"fewest {HOURS[job.device]}"
    if fastest is cheapest:
        return f"fastest, with the {fewest}: {words}"
    return f"fastest: {words}; {fewest}: {_devices(job, cheapest)} ({_numbers(job, cheapest, demand)})"


def _devices(job: Choices, row: Choice) -> str:
    devices = counted(row.devices, DEVICE_WORDS[job.device])
    if row.rivals < 2:
        return devices
    equal = [
        each for each in job.rows
        if each.devices == row.devices and each.changes == row.changes and not each.is_worse and not each.refused
    ]  # fmt: skip
    others = counted(len(equal) - 1, "other") if len(equal) > 1 else ""
    return f"{devices} with {job.recipe(row)}" + (f", or {others} that may be as good" if others else "")


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


def _reference_words(job: Choices) -> str:
    """What the reference learns with, less what is as always: its defaults, unless others change them."""
    first = job.rows[0]
    configuration = first.configuration
    told = {name for each in job.rows for name in each.changes}
    told |= set(configuration.workload.parameters.HEADLINE)
    shown = {
        name: value
        for name, value in first.learning.items()
        if name in told or name not in configuration.parameters or value != configuration.default(name)
    }
    return learning_words(shown)


def basis(job: Choices, demand: Demand) -> str:
    """What the times rest on."""
    lines = [f"The training: {length_words(job)}."]
    windows = [each.measured_s for each in job.rows if each.measured_s]
    if windows:
        least, longest = min(windows), max(each.time_s.value for each in job.rows)
        lines.append(
            f"Throughput was measured over {duration_words(least)} or more, and is taken to stay what it was"
            + (f" in a training up to {number(longest / least)} times as long" if longest > least else "")
            + "; start, tests and saving are not included."
        )
    if not any(each.energy_j for each in job.rows):
        why = "a CPU has no meter" if job.device == "cpu" else "the GPUs were not metered"
        lines.append(f"Energy: not recorded ({why}).")
    if demand.gpu_hour_cost is not None and job.device == "cpu":
        lines.append("Cost: not known, as no GPU was measured.")
    alone = sum(each.time_s.repeats == 1 for each in job.rows)
    if alone:
        lines.append(f"{counted(alone, 'configuration')} with one repeat: no interval, and nothing is shown worse.")
    return " ".join(lines)

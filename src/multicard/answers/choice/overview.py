"""A job at a glance: the few numbers that stand for it, and the table of all its choices in words."""

from collections.abc import Mapping

from multicard.answers import ablation
from multicard.answers.ablation import PartCost
from multicard.answers.bottlenecks.bottlenecks import BottleneckReport
from multicard.answers.choice.advice import Tile, WordTable
from multicard.answers.choice.answers import FASTER, ChosenSpeedup, best_of_words, nearest_rival, speedups, standing
from multicard.answers.choice.choice import Choice
from multicard.answers.choice.choices import Choices
from multicard.answers.choice.learning import words_of
from multicard.answers.doubt import undecided_words
from multicard.answers.scaling.speedup import implausible
from multicard.core.text import counted, plural
from multicard.core.units import BYTES, UNKNOWN, number, percent, with_unit
from multicard.stats.interval import verdict

# How sure a speed-up is, by the verdict whether it is above 1.
SURE = {"more": "Yes", "less": "No: slower", "none": "Inconclusive", "unknown": "No interval"}


def tiles(job: Choices, report: BottleneckReport, costs: Mapping[str, PartCost], doubt: str) -> list[Tile]:
    """Return the numbers that sum up a job: its fastest choice, a speed-up, the largest part of the step, how sure.

    Speed-up and step are those of the configuration that `report` is about. Either is left out if it is not known; the
    speed-up also if the fastest choice is that configuration, because its tile states it. The last tile says whether
    the speed-up is shown, or without one the number of repeats. It is followed by `doubt`, what could change the
    answers. `costs`: what parts of the step were measured to cost in that configuration, by the value of `ablate`.
    There are no tiles for a job without choices.
    """
    fastest = job.fastest
    if fastest is None:
        return []
    speedup_of_configuration = {speedup.choice.key: speedup for speedup in speedups(job)}
    shown = [_fastest_tile(job, fastest, speedup_of_configuration.get(fastest.key))]
    title, sure = "Repeats", counted(fastest.rate.repeats, "repeat")
    speedup = speedup_of_configuration.get(report.configuration.key)
    if speedup is not None:
        if report.configuration.key != fastest.key:
            shown.append(_speedup_tile(job, speedup))
        title, sure = "Is the speed-up shown?", SURE[verdict(speedup.ratio)]
    step = _step_tile(job, report, costs)
    if step is not None:
        shown.append(step)
    return [*shown, Tile(title, sure, doubt)]


def _fastest_tile(job: Choices, fastest: Choice, speedup: ChosenSpeedup | None) -> Tile:
    """Return the fastest choice, and how many times as fast as its baseline it is.

    The baseline is that of its `speedup`; without one, the choice of the same training and devices that is nearest to
    it. If neither exists, nothing is compared.
    """
    highest_rate = max(row.rate.value for row in job.rows)
    is_fastest_of_all = fastest.rate.value == highest_rate
    title = "Fastest measured" if is_fastest_of_all else "Fastest of the same training"
    rate = f"{number(fastest.rate.value)} {plural(2, job.unit)} per second"
    recipe = job.recipe(fastest)
    if speedup is not None:
        value = f"{speedup.ratio.texts()[0]}× as fast"
        notes = _joined(f"as {_baseline_words(job, fastest)} ({_speedup_notes(job, speedup)})", recipe, rate)
        return Tile(f"{title}: {job.on(fastest.devices)}", value, notes)
    nearest = nearest_rival(job, fastest)
    if nearest is None or nearest.ratio is None:
        return Tile(title, job.on(fastest.devices), _joined(recipe, rate))
    other = job.recipe(nearest)
    ratio = nearest.ratio.map(lambda times: 1 / times)
    compared = undecided_words(recipe, other, ratio) or f"{recipe}, {ratio.format(unit=f'{FASTER} as {other}')}"
    return Tile(title, job.on(fastest.devices), _joined(compared, rate))


def _baseline_words(job: Choices, choice: Choice) -> str:
    """Return the baseline of a choice's speed-up in words, with its method where that is not the choice's own."""
    method = choice.configuration.program.method
    baseline = next(speedup.baseline for speedup in job.speedups if speedup.configuration.key == choice.key)
    words = job.on(1)
    if baseline is None or baseline[method] == choice.configuration[method]:
        return words
    return f"{words} with {baseline.naming((method,))}"


def _speedup_tile(job: Choices, speedup: ChosenSpeedup) -> Tile:
    title = f"Speed-up of {job.on(speedup.choice.devices)} over 1"
    return Tile(title, f"{speedup.ratio.texts()[0]}×", _speedup_notes(job, speedup))


def _speedup_notes(job: Choices, speedup: ChosenSpeedup) -> str:
    """Return the interval of a speed-up, among how many it is the best, and its efficiency."""
    devices = speedup.choice.devices
    ratio = speedup.ratio
    _, details = ratio.texts()
    efficiency = f"{percent(ratio.value / devices)} efficient"
    return _joined(details, best_of_words(job, devices), implausible(ratio.value, devices) or efficiency)


def _joined(*notes: str) -> str:
    """Return the notes that are not empty, separated by semicolons."""
    return "; ".join(note for note in notes if note)


def _step_tile(job: Choices, report: BottleneckReport, costs: Mapping[str, PartCost]) -> Tile | None:
    """Return the measured cost of the largest part of the step, else its share; None if no part is known."""
    devices = job.on(report.configuration["devices"])
    cost = ablation.cost_of_largest_part(costs, report)
    if cost is not None:
        notes = f"without it {cost.ratio.format(unit='×')}, on {devices}"
        return Tile(f"Cost of {cost.name}, measured", percent(cost.share.value), notes)
    if report.largest is None:
        return None
    share = report.parts[report.largest]
    return Tile("Largest part of the step", f"{percent(share)} {report.largest}", f"on {devices}")


def word_table(job: Choices) -> WordTable:
    """Return a row in words for each choice. Columns in which all cells are empty are left out."""
    choices = job.rows
    units = plural(2, job.unit).capitalize()
    columns = {
        "Devices": [job.on(choice.devices) for choice in choices],
        "Recipe": [job.recipe(choice) for choice in choices],
        "Changes": [words_of(choice.changes) for choice in choices],
        f"{units} per second": [choice.rate.format() for choice in choices],
        "Speed-up": [_speedup_words(choice) for choice in choices],
        "Memory per device": [_memory_words(choice) for choice in choices],
        "Standing": [standing(choice) for choice in choices],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    rows = []
    for cells in zip(*shown.values(), strict=True):
        rows.append([cell or UNKNOWN for cell in cells])
    return WordTable(headings=list(shown), rows=rows)


def _speedup_words(choice: Choice) -> str:
    """Return the speed-up of a choice on several devices; empty for one device, or if it has no speed-up."""
    return choice.speedup.format() if choice.speedup and choice.devices > 1 else ""


def _memory_words(choice: Choice) -> str:
    return with_unit(choice.memory_bytes, BYTES) if choice.memory_bytes else ""

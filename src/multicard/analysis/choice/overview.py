"""A job at a glance: the few numbers that stand for it, and the table of all its choices in words."""

from collections.abc import Mapping

from multicard.analysis import ablation
from multicard.analysis.ablation import PartCost
from multicard.analysis.bottlenecks.bottlenecks import BottleneckReport
from multicard.analysis.choice.advice import Tile, WordTable
from multicard.analysis.choice.answers import ChosenSpeedup, best_of_words, speedups, standing
from multicard.analysis.choice.choice import Choice
from multicard.analysis.choice.choices import Choices
from multicard.analysis.choice.learning import words_of
from multicard.analysis.scaling.speedup import implausible
from multicard.core.text import counted, plural
from multicard.core.units import BYTES, UNKNOWN, number, percent, with_unit
from multicard.stats.interval import verdict

# How sure a speed-up is, by the verdict whether it is above 1.
SURE = {"more": "Significant", "less": "Significantly slower", "none": "Not significant", "unknown": "No interval"}


def tiles(job: Choices, report: BottleneckReport, costs: Mapping[str, PartCost], doubt: str) -> list[Tile]:
    """Return the numbers that sum up a job: its fastest choice, a speed-up, the largest part of the step, how sure.

    Speed-up and step are those of the configuration that `report` is about. Either is left out if it is not known. The
    last tile says whether the speed-up is shown, or without one the number of repeats. It is followed by `doubt`, what
    could change the answers. `costs`: what parts of the step were measured to cost in that configuration, by the value
    of `ablate`. There are no tiles for a job without choices.
    """
    fastest = job.fastest
    if fastest is None:
        return []
    shown = [_fastest_tile(job, fastest)]
    sure = counted(fastest.rate.repeats, "repeat")
    speedup = next((speedup for speedup in speedups(job) if speedup.choice.key == report.configuration.key), None)
    if speedup is not None:
        shown.append(_speedup_tile(job, speedup))
        sure = SURE[verdict(speedup.ratio)]
    step = _step_tile(job, report, costs)
    if step is not None:
        shown.append(step)
    return [*shown, Tile("How sure", sure, doubt)]


def _fastest_tile(job: Choices, fastest: Choice) -> Tile:
    rate = f"{number(fastest.rate.value)} {plural(2, job.unit)} per second"
    is_fastest_of_all = fastest.rate.value == max(row.rate.value for row in job.rows)
    title = "Fastest that was measured" if is_fastest_of_all else "Fastest of the same training"
    return Tile(title, job.on(fastest.devices), "; ".join(filter(None, (job.recipe(fastest), rate))))


def _speedup_tile(job: Choices, speedup: ChosenSpeedup) -> Tile:
    devices, ratio = speedup.choice.devices, speedup.ratio
    value, details = ratio.texts()
    efficiency = implausible(ratio.value, devices) or f"{percent(ratio.value / devices)} efficient"
    notes = "; ".join(filter(None, (details, best_of_words(job, devices), efficiency)))
    return Tile(f"Speed-up of {job.on(devices)} over 1", f"{value}×", notes)


def _step_tile(job: Choices, report: BottleneckReport, costs: Mapping[str, PartCost]) -> Tile | None:
    """Return the measured cost of the largest part of the step, else its share; None if no part is known."""
    devices = job.on(report.configuration["devices"])
    cost = ablation.cost_of_largest_part(costs, report)
    if cost is not None:
        notes = f"without it {cost.ratio.format(unit='×')}, on {devices}"
        return Tile(f"Cost of {cost.name}, measured", percent(cost.share.value), notes)
    if report.largest is None:
        return None
    return Tile("Largest part of the step", percent(report.parts[report.largest]), f"{report.largest}, on {devices}")


def word_table(job: Choices) -> WordTable:
    """Return a row in words for each choice. Columns in which all cells are empty are left out."""
    rows = job.rows
    columns = {
        "Devices": [job.on(row.devices) for row in rows],
        "Recipe": [job.recipe(row) for row in rows],
        "Changes": [words_of(row.changes) for row in rows],
        f"{plural(2, job.unit).capitalize()} per second": [row.rate.format() for row in rows],
        "Speed-up": [row.speedup.format() if row.speedup and row.devices > 1 else "" for row in rows],
        "Memory per device": [with_unit(row.memory_bytes, BYTES) if row.memory_bytes else "" for row in rows],
        "Standing": [standing(row) for row in rows],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    return WordTable(
        headings=list(shown),
        rows=[[cell or UNKNOWN for cell in cells] for cells in zip(*shown.values(), strict=True)],
    )

"""The table of choices as numbers, for files and notebooks, and in words, for a person."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.analysis.choice.choices import Choice, Choices
from multicard.analysis.choice.demand import Demand
from multicard.analysis.choice.learning import changes_words, learning_words
from multicard.analysis.evidence import DEVICE_WORDS, Configuration
from multicard.core.text import counted, plural
from multicard.core.units import BYTES, UNKNOWN, Units, confidence, number, with_unit

ENERGY: Units = ((3.6e6, "kWh"), (3.6e3, "Wh"), (1.0, "J"))
HOURS = {"cuda": "GPU-hours", "cpu": "process-hours"}
MOST_ROWS = 12
SIZES = ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s"))
STEPS = {"d": 3600, "h": 60, "min": 1}


@dataclass(frozen=True)
class WordTable:
    """Headings, rows of words, and how many rows are left out."""

    headings: list[str]
    rows: list[list[str]]
    left_out: int = 0


def as_table(found: Sequence[Choices], demand: Demand) -> pd.DataFrame:
    """One row per choice, then those that never completed; what was not recorded is empty."""
    rows = [
        _where(job, each.configuration)
        | {
            "recipe": job.recipe(each), "learning": learning_words(each.learning),
            "changes": changes_words(each.changes), "repeats": each.time_s.repeats, "work": job.work,
            "time_s": each.time_s.value, "time_s_low": each.time_s.low, "time_s_high": each.time_s.high,
            "speedup": each.speedup.value, "speedup_low": each.speedup.low, "speedup_high": each.speedup.high,
            "device_hours": each.device_hours, "cost": cost_of(each, demand), "energy_j": each.energy_j,
            "peak_memory_bytes": each.memory_bytes, "quality": each.quality,
            "deadline": each.deadline(demand.deadline_s) if demand.deadline_s else None,
            "not_worse": not each.refused and not each.is_worse, "refused": each.refused,
        }
        for job in found
        for each in job.rows
    ]  # fmt: skip
    rows += [
        _where(job, each) | {"repeats": 0, "not_worse": False, "refused": lost_words(each)}
        for job in found
        for each in job.lost
    ]
    return pd.DataFrame(rows)


def _where(job: Choices, configuration: Configuration) -> dict[str, Any]:
    return {
        "job": job.job, "machine": job.machine, "versions": job.versions, "device": job.device,
        "devices": configuration["devices"], "configuration": configuration.words(), "unit": job.unit,
    }  # fmt: skip


def in_words(job: Choices, demand: Demand) -> WordTable:
    """The table for a person, without empty columns; of many rows those that are worse are left out first."""
    rows = job.rows
    if len(rows) > MOST_ROWS:
        keep = sorted(rows, key=lambda each: bool(each.refused) + each.is_worse)[:MOST_ROWS]
        rows = [each for each in rows if any(each is one for one in keep)]
    columns = {
        "Devices": [counted(each.devices, DEVICE_WORDS[job.device]) for each in rows],
        "Recipe": [job.recipe(each) for each in rows],
        "Changes": [changes_words(each.changes) for each in rows],
        "Time": [time_words(each) for each in rows],
        "Speed-up": ["" if each.speedup.value is None or each.devices == 1 else each.speedup.format() for each in rows],
        HOURS[job.device][:1].upper() + HOURS[job.device][1:]: [number(each.device_hours) for each in rows],
        "Cost": ["" if (cost := cost_of(each, demand)) is None else number(cost) for each in rows],
        "Energy": [with_unit(each.energy_j, ENERGY) if each.energy_j else "" for each in rows],
        "Memory per device": [with_unit(each.memory_bytes, BYTES) if each.memory_bytes else "" for each in rows],
        "Reached": ["" if each.quality is None else number(each.quality) for each in rows],
        "Verdict": [verdict_words(each, demand) for each in rows],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    cells = [[cell or UNKNOWN for cell in row] for row in zip(*shown.values(), strict=True)]
    return WordTable(list(shown), cells, len(job.rows) - len(rows))


def verdict_words(row: Choice, demand: Demand) -> str:
    """Whether a choice counts, meets the deadline, and is worse than the best of its rivals."""
    if row.refused:
        return f"{'unknown' if row.unknown else 'excluded'}: {row.refused}"
    met = {"met": "meets the deadline", "may miss": "may miss the deadline", "missed": "misses the deadline"}
    in_time = met[row.deadline(demand.deadline_s)] if demand.deadline_s else ""
    in_time += " by one repeat" if in_time and row.time_s.high is None else ""
    runs, completed = len(row.configuration.runs), len(row.configuration.completed)
    lost = f"{completed} of {counted(runs, 'run')} completed" if completed < runs else ""
    return "; ".join(filter(None, (in_time, _standing(row), lost)))


def _standing(row: Choice) -> str:
    if row.is_best:
        return f"best of {row.rivals}" if row.rivals > 1 else ""
    if row.ratio is None:
        return ""
    if row.is_worse:
        return "worse than the best"
    return "one repeat, so not compared" if row.ratio.p_value is None else "not significantly worse than the best"


def lost_words(configuration: Configuration) -> str:
    """Why no run of a configuration completed."""
    outcomes = Counter(run.values["outcome"].replace("_", " ") for run in configuration.runs)
    return ", ".join(
        f"{each} in {count} of {counted(len(configuration.runs), 'run')}" for each, count in outcomes.items()
    )


def cost_of(row: Choice, demand: Demand) -> float | None:
    """Price of its GPUs; None of CPU processes, or without a price."""
    if demand.gpu_hour_cost is None or row.configuration["device"] != "cuda":
        return None
    return row.device_hours * demand.gpu_hour_cost


def time_words(row: Choice) -> str:
    """Time of the training with its interval, as it stands in parentheses."""
    time = row.time_s
    ends = (None if end is None else duration_words(end) for end in (time.low, time.high))
    return f"{duration_words(time.value)} [{confidence(*ends, time.repeats)[1:-1]}]"


def duration_words(seconds: float) -> str:
    """A duration by its two largest units.

    >>> duration_words(18_600), duration_words(200_000), duration_words(12.34), duration_words(3599.9)
    ('5 h 10 min', '2 d 8 h', '12.3 s', '1 h')
    """
    for size, unit, below in SIZES:
        step = STEPS[unit]
        if seconds >= size - step / 2:
            whole, rest = divmod(round(seconds / step), size // step)
            return f"{whole} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{number(seconds)} s"


def length_words(job: Choices) -> str:
    """How long the training is.

    >>> length_words(Choices("", "cpu", None, None, "image", 3000.0, 1000.0, True, []))
    '3,000 images (3 epochs of 1,000)'
    """
    length = f"{number(job.work)} {plural(2, job.unit)}"
    if not job.length_known:
        return f"{length}, as its length was not recorded (`--samples N` states it)"
    if not job.of_pass:
        return length
    epochs = job.work / job.of_pass
    return f"{length} ({number(epochs)} {'epoch' if epochs == 1 else 'epochs'} of {number(job.of_pass)})"

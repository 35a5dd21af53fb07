"""The trainings of a trade-off as a table, and the words for what tells them apart."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from multicard.analysis.choice.learning import changes_words, learning_words
from multicard.analysis.choice.tradeoff import Demand, Tradeoff, Training
from multicard.analysis.evidence import Configuration
from multicard.core.text import counted, plural
from multicard.core.units import number


def as_table(found: Sequence[Tradeoff], demand: Demand) -> pd.DataFrame:
    """One row per training, then those that never completed; what was not recorded is empty."""
    rows = [
        _where(job, each.configuration)
        | {
            "learning": learning_words(each.learning), "changes": changes_words(each.changes),
            "repeats": each.time_s.repeats, "work": job.work,
            "time_s": each.time_s.value, "time_s_low": each.time_s.low, "time_s_high": each.time_s.high,
            "device_hours": each.device_hours, "cost": cost_of(each, demand), "energy_j": each.energy_j,
            "peak_memory_bytes": each.memory_bytes, "measured_s": each.measured_s, "quality": each.quality,
            "deadline": each.deadline(demand.deadline_s) if demand.deadline_s else None,
            "on_front": each.on_front, "refused": each.refused,
        }
        for job in found
        for each in job.trainings
    ]  # fmt: skip
    rows += [
        _where(job, each) | {"repeats": 0, "on_front": False, "refused": lost_words(each)}
        for job in found
        for each in job.lost
    ]
    return pd.DataFrame(rows)


def _where(job: Tradeoff, configuration: Configuration) -> dict[str, Any]:
    return {
        "job": job.job, "machine": job.machine, "versions": job.versions, "device": job.device,
        "devices": configuration["devices"], "configuration": configuration.words(), "unit": job.unit,
    }  # fmt: skip


def lost_words(configuration: Configuration) -> str:
    """Why no run of a configuration completed."""
    outcomes = Counter(run.values["outcome"].replace("_", " ") for run in configuration.runs)
    return ", ".join(
        f"{each} in {count} of {counted(len(configuration.runs), 'run')}" for each, count in outcomes.items()
    )


def cost_of(training: Training, demand: Demand) -> float | None:
    """Price of its GPUs; None of CPU processes, or without a price."""
    if demand.gpu_hour_cost is None or training.configuration["device"] != "cuda":
        return None
    return training.device_hours * demand.gpu_hour_cost


def length_words(job: Tradeoff) -> str:
    """How long the training is.

    >>> length_words(Tradeoff("", "cpu", None, "image", 3000.0, 1000.0, []))
    '3,000 images (3 epochs of 1,000)'
    """
    length = f"{number(job.work)} {plural(2, job.unit)}"
    if not job.of_pass:
        return length
    epochs = job.work / job.of_pass
    return f"{length} ({number(epochs)} {'epoch' if epochs == 1 else 'epochs'} of {number(job.of_pass)})"

"""Naming the series of a figure by what varies."""

import numpy as np
import pandas as pd

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.evidence import DEVICE_WORDS
from multicard.core.text import counted, for_figure, plural
from multicard.core.units import ARGS_PREFIX
from multicard.experiment.workload import WORKLOADS, workload_of
from multicard.workloads.llm.techniques import TECHNIQUES

# Parameters whose values are clear without their name.
PLAIN = (
    "strategy", "precision", "dataset", "profiler", "device", "model", "launcher", "command", "folder", "python",
    "program",
)  # fmt: skip
LONGEST = 40  # characters of a value that a user wrote


def unit(name: str, value: object) -> str:
    """Label of a value of a parameter."""
    text = str(value)
    if name.startswith(ARGS_PREFIX):
        return _own(name.removeprefix(ARGS_PREFIX), value)
    if name == "steps_per_epoch":  # where the table was read from CSV, 100.0, and not a number for all
        return "full epochs" if pd.isna(value) else f"{value:g} {plural(float(value), 'step')} per epoch"
    worded = {
        "image_size": f"{value} px",
        "batch_size": f"batch {value}",
        "num_workers": f"{value} workers" if text != "1" else "1 worker",
        "width_mult": f"width {value}",
        "layout": text.upper(),
        "profiler": "no profiler" if text == "none" else None,
        "loader": {"torch": "DataLoader", "dali": "DALI"}.get(text),
        "preset": f"{value} settings",
        "technique": TECHNIQUES[text].label if text in TECHNIQUES else None,
        "qat_of": f"QAT of {value}",
        "qat_group": f"QAT group {value}",
        "lora_rank": f"rank {value}",
        "lora_alpha": f"alpha {value}",
        "pin_memory": {"True": "pinned memory", "False": "pageable memory"}.get(text),
        "packed": {"True": "packed", "False": "not packed"}.get(text),
        "activation_checkpointing": {"True": "recomputed activations", "False": "kept activations"}.get(text),
        "sequence_length": f"{value} tokens",
        "gradient_accumulation_steps": f"{value} batches per step" if text != "1" else "1 batch per step",
    }.get(name)
    if worded:
        return worded
    spaced = name.replace("_", " ")
    if text in ("True", "False"):  # text where the table was read from CSV
        return spaced if text == "True" else f"no {spaced}"
    return for_figure(text, LONGEST) if name in PLAIN else f"{spaced} {value}"


def _own(name: str, value: object) -> str:
    """Label of a value of the user's own parameter, which is called as the user calls it."""
    if isinstance(value, bool | np.bool_):
        return name if value else f"no {name}"
    whole = isinstance(value, float) and value.is_integer()
    return f"{name} {for_figure(str(int(value) if whole else value), LONGEST)}"


def labels(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Label of each row by those of the parameters `names` that apply; without any, by the `default_label`."""
    works = [work for work in WORKLOADS.values() if work.method in rows]

    def label(row: pd.Series) -> str:
        shown = [name for name in names if all(work.applies(name, row) for work in works)]
        of_another_script = {name for name in shown if name.startswith(ARGS_PREFIX) and pd.isna(row[name])}
        shown = [name for name in shown if name not in of_another_script]
        shown = shown or [workload_of(rows).default_label]
        if "technique" in shown and any(name in TECHNIQUES[row["technique"]].own_parameters for name in shown):
            shown = [name for name in shown if name != "technique"]  # "QAT of weights" says it
        return ", ".join(unit(name, row[name]) for name in shown)

    return [label(row) for _, row in rows.iterrows()]


def configuration_names(measures: pd.DataFrame, rows: pd.DataFrame, besides: tuple[str, ...] = ()) -> list[str]:
    """Name of each configuration in `rows` by what varies among the runs, `besides` some, and its number of devices."""
    names = varied(measures, besides=("devices", "repeat", *besides))
    counts = [counted(count, device_word(measures)) for count in rows["devices"]]
    if besides and not names:
        return counts
    return [f"{label}, {count}" for label, count in zip(labels(rows, names), counts, strict=True)]


def completed_of(measures: pd.DataFrame) -> pd.DataFrame:
    """The completed runs; columns can be added to them."""
    return measures[measures["outcome"] == "completed"].copy()


def named_runs(measures: pd.DataFrame) -> pd.DataFrame:
    """The completed runs, each with the name of its `configuration`."""
    completed = completed_of(measures)
    return completed.assign(configuration=configuration_names(measures, completed))


def only_count(measures: pd.DataFrame) -> str | None:
    """Text that says so if the completed runs have a single number of devices; None if they have several."""
    completed = completed_of(measures)
    counts = completed["devices"].unique()
    return f"completed runs on {counted(int(counts[0]), device_word(completed))} only" if len(counts) == 1 else None


def device_axis(measures: pd.DataFrame) -> str:
    """Label of an axis of devices."""
    words = plural(2, device_word(measures))
    return words[0].upper() + words[1:]


def device_word(measures: pd.DataFrame) -> str:
    """What a device of these runs is called: a GPU, or a CPU process; a device where some have one, some the other."""
    kinds = set(measures["device"])
    return DEVICE_WORDS.get(kinds.pop(), "device") if len(kinds) == 1 else "device"

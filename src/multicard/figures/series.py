"""Naming the series of a figure by what varies."""

import pandas as pd

from multicard.analysis.scaling import over_repeats
from multicard.experiment.config import PARAMETERS
from multicard.experiment.workload import workload_of
from multicard.workloads.llm.technique import TECHNIQUES

# Parameters whose values speak for themselves.
PLAIN = ("strategy", "precision", "dataset", "profiler", "device", "model")


def unit(name: str, value: object) -> str:
    """Word one value of a parameter for a reader."""
    text = str(value)
    worded = {
        "image_size": f"{value} px",
        "batch_size": f"batch {value}",
        "num_workers": f"{value} workers",
        "width_mult": f"width {value}",
        "layout": text.upper(),
        "loader": {"torch": "DataLoader", "dali": "DALI"}.get(text),
        "preset": f"{value} settings",
        "technique": TECHNIQUES[text].label if text in TECHNIQUES else None,
        "qat_of": f"QAT of {value}",
        "qat_group": f"QAT group {value}",
        "lora_rank": f"rank {value}",
        "lora_alpha": f"alpha {value}",
        "packed": {"True": "packed", "False": "not packed"}.get(text),
        "activation_checkpointing": {"True": "recomputed activations", "False": "kept activations"}.get(text),
        "sequence_length": f"{value} tokens",
        "gradient_accumulation_steps": f"{value} batches per step" if text != "1" else "1 batch per step",
    }.get(name)
    if worded:
        return worded
    spaced = name.replace("_", " ")
    if text in ("True", "False"):  # a table that was read from CSV holds words
        return spaced if text == "True" else f"no {spaced}"
    return text if name in PLAIN else f"{spaced} {value}"


def varied(measures: pd.DataFrame, besides: tuple[str, ...]) -> list[str]:
    """Parameters with more than one value among the runs, except those named and those that follow the preset."""
    names = [name for name in PARAMETERS if name in measures and name not in besides]
    return workload_of(measures).varying(measures, names)


def labels(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Label of each row, made of the parameters `names`; of what tells the jobs of a workload apart where none is."""
    shown = names or [workload_of(rows).method]
    return [", ".join(unit(name, row[name]) for name in shown) for _, row in rows.iterrows()]


def device_labels(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """As `labels`, with the number of devices before it where that varies; the number alone where nothing else does."""
    kind = device_axis(rows)
    counts = [devices(count, kind) for count in rows["devices"]]
    if not names:
        return counts
    if rows["devices"].nunique() == 1:
        return labels(rows, names)
    return [f"{count}, {label}" for count, label in zip(counts, labels(rows, names), strict=True)]


def configurations(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """As `over_repeats`, with a row also for each configuration that no repeat completed.

    Rows have the `outcome`, completed where one repeat did; without a completed one `repeats` is 0, values are empty.
    """
    by = [name for name in PARAMETERS if name in measures and name != "repeat"]
    outcomes = measures["outcome"].where(measures["outcome"] != "completed")
    every = measures.assign(outcome=outcomes).groupby(by, sort=False, dropna=False)["outcome"].first().reset_index()
    data = every.merge(over_repeats(measures, values), on=by, how="left")
    data["repeats"] = data["repeats"].fillna(0).astype(int)
    data["outcome"] = data["outcome"].where(data["repeats"] == 0, "completed")
    return data


def medians(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Median of each value over the completed repeats of a configuration: its parameters, `repeats`, the values."""
    completed = measures[measures["outcome"] == "completed"]
    by = [name for name in PARAMETERS if name in measures and name != "repeat"]
    groups = completed.groupby(by, sort=False, dropna=False)
    return pd.DataFrame({"repeats": groups.size(), **groups[values].median()}).reset_index()


def configuration_names(measures: pd.DataFrame, data: pd.DataFrame) -> list[str]:
    """Name of each configuration in `data` by what varies among the runs, and its number of devices."""
    others = varied(measures, besides=("devices", "repeat"))
    kind = device_axis(measures)
    return [
        f"{label}, {devices(count, kind)}" for label, count in zip(labels(data, others), data["devices"], strict=True)
    ]


def only_count(measures: pd.DataFrame) -> str | None:
    """Say that the completed runs have one number of devices only; None when they have several."""
    completed = measures[measures["outcome"] == "completed"]
    counts = completed["devices"].unique()
    if len(counts) > 1:
        return None
    return f"completed runs on {devices(int(counts[0]), device_axis(completed))} only"


def is_llm(measures: pd.DataFrame) -> bool:
    """Whether the runs tune language models, so that tokens are what counts."""
    return set(measures["workload"]) == {"llm"}


def device_axis(measures: pd.DataFrame) -> str:
    """Label of an axis of devices, saying which."""
    kinds = set(measures["device"])
    if kinds == {"cuda"}:
        return "GPUs"
    return "CPU processes" if kinds == {"cpu"} else "Devices"


def devices(count: int, kind: str) -> str:
    """Word a number of devices.

    >>> devices(1, "GPUs"), devices(1, "CPU processes"), devices(2, "Devices")
    ('1 GPU', '1 CPU process', '2 devices')
    """
    plural = kind if kind != "Devices" else "devices"
    return f"{count} {plural if count > 1 else plural.removesuffix('es' if plural.endswith('sses') else 's')}"

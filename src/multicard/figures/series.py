"""Naming the series of a figure by what varies, and saying what is not shown."""

import pandas as pd

from multicard.analysis.measures import PARAMETERS
from multicard.experiment.parameters import TUNED


def unit(name: str, value: object) -> str:
    """Word one value of a parameter for a reader."""
    worded = {
        "image_size": f"{value} px",
        "batch_size": f"batch {value}",
        "width": f"width {value}",
        "layout": str(value).upper(),
        "loader": {"torch": "DataLoader", "dali": "DALI"}.get(str(value)),
        "preset": f"{value} settings",
    }
    spaced = name.replace("_", " ")
    if str(value) in ("True", "False"):  # a table that was read from CSV holds words
        return spaced if str(value) == "True" else f"no {spaced}"
    plain = name in ("strategy", "precision", "dataset", "profiler", "device")
    return worded.get(name) or (str(value) if plain else f"{spaced} {value}")


def varied(measures: pd.DataFrame, besides: tuple[str, ...]) -> list[str]:
    """Parameters with more than one value among the runs, except those named and those that follow the preset."""
    names = [name for name in PARAMETERS if name not in besides]
    found = [name for name in names if measures[name].nunique(dropna=False) > 1]
    if "preset" not in found:
        return found
    follows = [name for name in TUNED if measures.groupby("preset")[name].nunique(dropna=False).max() == 1]
    return [name for name in found if name not in follows]


def labels(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Label of each row, made of the parameters `names`."""
    return [", ".join(unit(name, row[name]) for name in names) or row["strategy"] for _, row in rows.iterrows()]


def device_axis(measures: pd.DataFrame) -> str:
    """Label of an axis of devices, saying which."""
    kinds = set(measures["device"])
    if kinds == {"cuda"}:
        return "GPUs"
    return "CPU processes" if kinds == {"cpu"} else "Devices"


def not_shown(measures: pd.DataFrame) -> str | None:
    """A line about the runs that did not complete; None when all did."""
    lost = measures[measures["outcome"] != "completed"]
    if lost.empty:
        return None
    counts = lost["outcome"].value_counts()
    return "Not shown: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())

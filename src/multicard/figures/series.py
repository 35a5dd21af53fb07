"""Names of the series and rows of a figure, made of the parameters that vary, and words for its devices."""

from typing import Any

import pandas as pd

from multicard.answers.comparison.comparisons import varied
from multicard.config.wording import setting
from multicard.core.text import counted, for_figure, plural
from multicard.core.units import ARGS_PREFIX
from multicard.programs import PROGRAMS, program_of
from multicard.results.configuration import DEVICE_WORDS

LONGEST_SETTING = 60  # characters of a parameter with its value, which a user may have written; the rest is cut off


def setting_label(name: str, value: Any) -> str:
    """Return a parameter's value in words, as a label that Matplotlib draws literally."""
    return for_figure(setting(name, value), LONGEST_SETTING)


def labels(rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Return a label for each row from the values of the parameters `names`, such as "100 px, fp64".

    A parameter that does not apply to the row is left out. If none applies, the label is the value of the workload's
    `default_label`.
    """
    return [
        ", ".join(setting_label(name, row[name]) for name in _named_in(row, rows, names)) for _, row in rows.iterrows()
    ]


def _named_in(row: pd.Series, rows: pd.DataFrame, names: list[str]) -> list[str]:
    """Return the parameters that the label of a row names."""
    programs = [program for program in PROGRAMS.values() if program.method in rows]
    applicable = [
        name
        for name in names
        if all(program.parameters.applies(name, row) for program in programs)
        # Rows of different scripts have different parameters; the parameters of other scripts are empty.
        and not (name.startswith(ARGS_PREFIX) and pd.isna(row[name]))
    ]
    if not applicable:
        applicable = [program_of(rows).comparison.default_label]
    for program in programs:
        # A method's own parameter names the method already, such as "QAT of weights".
        own_parameters = program.own_parameters.get(row[program.method], ())
        if program.method in applicable and any(name in own_parameters for name in applicable):
            applicable.remove(program.method)
    return applicable


def configuration_names(measures: pd.DataFrame, rows: pd.DataFrame, besides: tuple[str, ...] = ()) -> list[str]:
    """Return a name for the configuration of each row: the parameters that vary, and the number of devices.

    Parameters
    ----------
    measures
        The runs of the scenario, which show what parameters vary.
    rows
        Rows with the parameters of configurations.
    besides
        Parameters that are left out of the names; if nothing else varies, a name is only the number of devices.
    """
    varying = varied(measures, besides=("devices", "repeat", *besides))
    counts = [counted(count, device_word(measures)) for count in rows["devices"]]
    if besides and not varying:
        return counts
    return [f"{label}, {count}" for label, count in zip(labels(rows, varying), counts, strict=True)]


def completed_of(measures: pd.DataFrame) -> pd.DataFrame:
    """Return the completed runs, as a copy that may be changed."""
    return measures[measures["outcome"] == "completed"].copy()


def named_runs(measures: pd.DataFrame) -> pd.DataFrame:
    """Return the completed runs with a further column `configuration`, its name."""
    completed = completed_of(measures)
    return completed.assign(configuration=configuration_names(measures, completed))


def only_count(measures: pd.DataFrame) -> str | None:
    """Return "completed runs on 2 GPUs only" if all completed runs have that number of devices; else None."""
    completed = completed_of(measures)
    counts = completed["devices"].unique()
    if len(counts) != 1:
        return None
    return f"completed runs on {counted(int(counts[0]), device_word(completed))} only"


def device_axis(measures: pd.DataFrame) -> str:
    """Return the label of an axis of devices, such as "GPUs"."""
    words = plural(2, device_word(measures))
    return words[0].upper() + words[1:]


def device_word(measures: pd.DataFrame) -> str:
    """Return the word for a device of these runs: "GPU" or "CPU process", or "device" if they ran on both."""
    kinds = set(measures["device"])
    return DEVICE_WORDS.get(kinds.pop(), "device") if len(kinds) == 1 else "device"

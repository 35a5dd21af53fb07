"""Speed-up and efficiency against one device, and the spread over repeats."""

import pandas as pd

from multicard.experiment.workloads import PARAMETERS


def add_scaling(measures: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `speedup` and `efficiency` to the measures of one scenario.

    Speed-up is the throughput over that of the baseline: the run with the same other parameters on one device, of
    images under the strategy `single` where the scenario has it, else under the same strategy. Throughput counts
    distinct samples of images, and tokens of texts. The baseline is the median over its repeats. Efficiency is the
    speed-up per device. Where there is no baseline both are empty.
    """
    measures = measures.copy()
    completed = measures[measures["outcome"] == "completed"]
    way, rate = (
        ("technique", "tokens_per_s") if "strategy" not in measures else ("strategy", "throughput_samples_per_s")
    )
    same = [name for name in PARAMETERS if name in measures and name not in ("strategy", "devices", "repeat")]
    speedups, baselines = [], []
    for _, row in measures.iterrows():
        alike = completed[(completed["devices"] == 1)]
        for name in same:
            alike = alike[_equal(alike[name], row[name])]
        base_way = "single" if (alike[way] == "single").any() else row[way]
        base = alike[alike[way] == base_way][rate].median()
        known = row["outcome"] == "completed" and pd.notna(base)
        speedups.append(row[rate] / base if known else None)
        baselines.append(f"{base_way}, 1 device" if known else None)
    measures["baseline"] = pd.array(baselines, dtype="string")
    measures["speedup"] = pd.array(speedups, dtype="Float64")
    measures["efficiency"] = measures["speedup"] / measures["devices"]
    return measures


def over_repeats(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Median, lowest and highest of each value over the completed repeats of a configuration.

    Gives one row per configuration in the order of `measures`: its parameters, `repeats`, and for each value
    `<value>`, `<value>_low` and `<value>_high`. With a handful of repeats their range is the honest interval.
    """
    completed = measures[measures["outcome"] == "completed"]
    by = [name for name in PARAMETERS if name in measures and name != "repeat"]
    groups = completed.groupby(by, sort=False, dropna=False)
    parts = {"repeats": groups.size()}
    for value in values:
        parts |= {
            value: groups[value].median(),
            f"{value}_low": groups[value].min(),
            f"{value}_high": groups[value].max(),
        }
    return pd.DataFrame(parts).reset_index()


def _equal(column: pd.Series, value: object) -> pd.Series:
    """Compare, taking empty for equal to empty."""
    return column.isna() if pd.isna(value) else column == value

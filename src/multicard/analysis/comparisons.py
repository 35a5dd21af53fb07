"""What varies among the runs of a scenario, and configurations of them compared: what figures draw."""

import numpy as np
import pandas as pd

from multicard.analysis.scaling import over_repeats
from multicard.analysis.statistics import Interval, ratios_of, verdict
from multicard.experiment.config import PARAMETERS
from multicard.experiment.workload import workload_of

# Values in the order in which each is compared with the first that completed.
ORDER: dict[str, tuple[object, ...]] = {
    "precision": ("fp64", "fp32", "bf16", "fp16"),
    "pin_memory": (False, True),
    "loader": ("torch", "dali"),
    "layout": ("nchw", "nhwc"),
    "binding": ("none", "numa"),
    "preset": ("paper", "tuned"),
}

QUANTILES = {"p1_s": 0.01, "p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p99_s": 0.99}


def varied(measures: pd.DataFrame, besides: tuple[str, ...]) -> list[str]:
    """Parameters with more than one value among the runs, except those named and those that follow the preset."""
    names = [name for name in PARAMETERS if name in measures and name not in besides]
    return workload_of(measures).varying(measures, names)


def medians(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Median of each value over the completed repeats of a configuration: its parameters, `repeats`, the values."""
    completed = measures[measures["outcome"] == "completed"]
    groups = completed.groupby(_parameters(measures), sort=False, dropna=False)
    return pd.DataFrame({"repeats": groups.size(), **groups[values].median()}).reset_index()


def configurations(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """As `over_repeats`, with a row also for each configuration that no repeat completed.

    Rows have the `outcome`, completed where one repeat did; without a completed one `repeats` is 0, values are empty.
    """
    by = _parameters(measures)
    outcomes = measures["outcome"].where(measures["outcome"] != "completed")
    every = measures.assign(outcome=outcomes).groupby(by, sort=False, dropna=False)["outcome"].first().reset_index()
    data = every.merge(over_repeats(measures, values), on=by, how="left")
    data["repeats"] = data["repeats"].fillna(0).astype(int)
    data["outcome"] = data["outcome"].where(data["repeats"] == 0, "completed")
    return data


def gains(measures: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """Speed gain over the base value: one row per compared value and configuration of the other parameters.

    Columns: `base`, `value`, the other varied parameters, `devices`, `repeats` of the two together, the fewer; `gain` =
    time per step with the base over time with the value − 1, its interval `gain_low` and `gain_high` (empty where one
    of them has one repeat), and the `verdict` of `statistics`: whether that is `more`, `less` or no (`none`) speed.
    """
    completed = measures[(measures["outcome"] == "completed") & measures["iteration_time_s"].notna()]
    by = [*varied(measures, besides=(parameter, "devices", "repeat")), "devices"]
    present = [value for value in ORDER[parameter] if (completed[parameter] == value).any()]
    pairs, rows = [], []
    for value in present[1:]:
        for key, group in completed.groupby(by, sort=False, dropna=False):
            base, compared = (
                group.loc[group[parameter] == each, "iteration_time_s"].tolist() for each in (present[0], value)
            )
            if base and compared:
                pairs.append((base, compared))
                rows.append({"base": present[0], "value": value, **dict(zip(by, key, strict=True))})
    for row, ratio in zip(rows, ratios_of(pairs), strict=True):
        for name, bound in (("gain", ratio.value), ("gain_low", ratio.low), ("gain_high", ratio.high)):
            row[name] = None if bound is None else bound - 1
        row |= {"repeats": ratio.repeats, "verdict": verdict(ratio)}
    columns = ["base", "value", *by, "repeats", "gain", "gain_low", "gain_high", "verdict"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("gain", "gain_low", "gain_high"), float))


def overheads(measures: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Profiling overhead of each configuration that has one, as `over_repeats`, and the verdict on each."""
    data = over_repeats(measures, ["profiler_overhead"])
    data = data[data["profiler_overhead"].notna()].reset_index(drop=True)
    columns = ["profiler_overhead", "profiler_overhead_low", "profiler_overhead_high"]
    ratios = (1 + data[columns].astype(float)).assign(repeats=data["repeats"]).itertuples(index=False)
    return data, pd.Series([_verdict(*ratio) for ratio in ratios], index=data.index, dtype=str)


def quantiles_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of the step times of each `configuration`: its `steps`, the `lowest_s`, `QUANTILES`, `highest_s`."""
    rows = []
    for name, times in steps.groupby("configuration", sort=False)["duration_s"]:
        found = dict(zip(QUANTILES, np.quantile(times, list(QUANTILES.values())), strict=True))
        ends = times.min(), times.max()
        rows.append({"configuration": name, "steps": len(times), "lowest_s": ends[0], **found, "highest_s": ends[1]})
    return pd.DataFrame(rows)


def tokens_per_rank(data: pd.DataFrame) -> pd.DataFrame:
    """Tokens of a step and rank, without padding (`tokens`) and with it (`padded_tokens`)."""
    tokens = data["tokens_per_step"] / data["devices"]
    return pd.DataFrame({"tokens": tokens, "padded_tokens": tokens / (1 - data["padding_share"].fillna(0.0))})


def _parameters(measures: pd.DataFrame) -> list[str]:
    return [name for name in PARAMETERS if name in measures and name != "repeat"]


def _verdict(value: float, low: float, high: float, repeats: int) -> str:
    bounds = (None, None) if repeats < 2 or np.isnan(low) or np.isnan(high) else (low, high)
    return verdict(Interval(value, *bounds, repeats))

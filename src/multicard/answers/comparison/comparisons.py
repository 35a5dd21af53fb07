"""Configurations of a scenario compared: what one setting gains over another, and what profiling costs."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd

from multicard.answers.scaling.speedup_tables import columns_of
from multicard.config.experiment import parameters_in
from multicard.programs import PROGRAMS, program_of
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.corrections import corrected
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool


def _values(parameter: str) -> tuple[object, ...]:
    """Return the values of a parameter in the order in which its type lists them, but `none` or False first."""
    models = [program.parameters for program in PROGRAMS.values()]
    field = next(model.model_fields[parameter] for model in models if parameter in model.model_fields)
    annotation = field.annotation
    if annotation is bool:
        return False, True
    values = get_args(annotation)
    without_none = tuple(value for value in values if value != "none")
    return ("none", *without_none) if "none" in values else without_none


# The values of each parameter that figures compare. The first value with a completed run is the base: the other values
# are compared with it.
ORDER = {
    name: _values(name) for name in ("precision", "pin_memory", "loader", "layout", "binding", "preset", "profiler")
}

QUANTILES = {"p1_s": 0.01, "p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p99_s": 0.99}


def varied(measures: pd.DataFrame, besides: tuple[str, ...]) -> list[str]:
    """Return the parameters with several values, except those in `besides` and those that the preset decides."""
    names = [name for name in parameters_in(measures) if name not in besides]
    return program_of(measures).varying(measures, names)


class _Setting(NamedTuple):
    """A value of the compared parameter, and the values of the other parameters that vary."""

    value: Hashable
    other_values: tuple[Any, ...]


def gains(results: Results, parameter: str) -> pd.DataFrame:
    """Return how much faster steps are with each value of a parameter than with its base value.

    The base is the first value of `ORDER` with a completed run. There is a row for each other value and each
    combination of the other parameters, if both that value and the base were measured with this combination. Columns:

    - `base` and `value`, the other parameters that vary, and `devices`.
    - `repeats`: how many repeats are compared.
    - `gain`: time per step with the base, over time per step with the value, less 1. `gain_low` and `gain_high` are its
      interval. They are empty if both sides have a single repeat, or if nothing shows how much repeats scatter.
    - `verdict` of `stats.interval`: the value is shown to be faster (`more`) or slower (`less`), no difference is shown
      (`none`), or there is no p-value (`unknown`). P-values are corrected for all rows.

    The values of `profiler` are the profilers that were used (`as_used`).
    """
    results = as_used(results, parameter).on_any_machine()
    other_parameters = [*varied(results.frame(), besides=(parameter, "devices", "repeat")), "devices"]
    timed = results.completed().where(lambda measures: measures["iteration_time_s"].notna())
    samples = {
        _setting(configuration, parameter, other_parameters): configuration.blocks("iteration_time_s")
        for configuration in timed.configurations()
    }
    base, compared = _compared(list(samples), parameter)
    pool = Pool(samples)
    ratios = [pool.ratio(setting._replace(value=base), setting) for setting in compared]
    values = [setting.value for setting in compared]
    table = _other_values_table(timed.frame()[other_parameters], list(samples), compared)
    table.insert(0, "base", base)
    table.insert(1, "value", pd.Series(values, dtype=object))
    return pd.concat([table, _excess("gain", ratios)], axis="columns")


def _setting(configuration: Configuration, parameter: str, other_parameters: Sequence[str]) -> _Setting:
    other_values = tuple(configuration[name] for name in other_parameters)
    return _Setting(configuration[parameter], other_values)


def _compared(settings: Sequence[_Setting], parameter: str) -> tuple[Hashable, list[_Setting]]:
    """Return the base value, and the settings to compare with it; None and no settings if no value is in `ORDER`.

    A setting is compared if the base value was measured with the same other values. Settings are sorted by value in the
    order of `ORDER`; those with the same value are in the order of their other values in `settings`.
    """
    values = {setting.value for setting in settings}
    present = [value for value in ORDER[parameter] if value in values]
    if not present:
        return None, []
    base, *compared_values = present
    with_base = {setting.other_values for setting in settings if setting.value == base}
    distinct = dict.fromkeys(setting.other_values for setting in settings)
    comparable = [other_values for other_values in distinct if other_values in with_base]
    measured = set(settings)
    compared = []
    for value in compared_values:
        candidates = [_Setting(value, other_values) for other_values in comparable]
        compared += [setting for setting in candidates if setting in measured]
    return base, compared


def _other_values_table(rows: pd.DataFrame, settings: Sequence[_Setting], compared: Sequence[_Setting]) -> pd.DataFrame:
    """Return the other parameters of each compared setting, with the types that the columns of the measures have.

    `rows`: the other parameters of each run that the settings were made from. Distinct rows have to be in the same
    order as distinct `other_values` in `settings`.
    """
    distinct = list(dict.fromkeys(setting.other_values for setting in settings))
    positions = [distinct.index(setting.other_values) for setting in compared]
    distinct_rows = rows.drop_duplicates()
    return distinct_rows.iloc[positions].reset_index(drop=True)


def as_used(results: Results, parameter: str) -> Results:
    """Return the results with the profilers that were used in place of those stated, if `parameter` is `profiler`.

    The stated value `auto` stands for a different profiler on each kind of machine. Other parameters stay as stated.
    """
    measures = results.measures
    if parameter == "profiler" and "profiler_used" in measures:
        return results.with_columns(profiler=measures["profiler_used"].fillna(measures["profiler"]))
    return results


def overheads(results: Results) -> pd.DataFrame:
    """Return the profiling overhead of each configuration that has one.

    The overhead is the iteration time while the profiler records, over the iteration time without it, less 1. Columns:
    the parameters; `repeats`; `profiler_overhead`, from the geometric mean of the ratios of all repeats, with its
    interval `profiler_overhead_low` and `profiler_overhead_high`; and the `verdict`, corrected for all rows.
    """
    profiled = results.on_any_machine().completed().where(lambda measures: measures["profiler_overhead"].notna())
    time_ratios = []
    for configuration in profiled.configurations():
        overhead_of_block = configuration.blocks("profiler_overhead")
        time_ratios.append({block: 1 + overhead for block, overhead in overhead_of_block.items()})
    pool = Pool(time_ratios)
    means = [pool.mean(index) for index in range(len(time_ratios))]
    return pd.concat([profiled.parameters(), _excess("profiler_overhead", means)], axis=1)


def _excess(name: str, ratios: Sequence[Interval | None]) -> pd.DataFrame:
    """Return ratios less 1 with bounds, their `repeats` (0 for None), and the `verdict` on each, corrected for all."""
    excess = [ratio and ratio.map(lambda times: times - 1) for ratio in ratios]
    repeats = [ratio.repeats if ratio else 0 for ratio in ratios]
    verdicts = [verdict(ratio) for ratio in corrected(ratios)]
    return pd.DataFrame(
        {
            "repeats": pd.Series(repeats, dtype=int),
            **columns_of(name, excess),
            "verdict": pd.Series(verdicts, dtype=object),
        }
    )


def quantiles_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the distribution of the step times of each `configuration`, in seconds.

    `steps`: a row per step, with `configuration` and `duration_s`. Columns of the result: `configuration`, the number
    of `steps`, `lowest_s`, a column for each of `QUANTILES`, `highest_s`.
    """
    rows = []
    for configuration, durations_s in steps.groupby("configuration", sort=False)["duration_s"]:
        quantiles = np.quantile(durations_s, list(QUANTILES.values()))
        rows.append(
            {
                "configuration": configuration,
                "steps": len(durations_s),
                "lowest_s": durations_s.min(),
                **dict(zip(QUANTILES, quantiles, strict=True)),
                "highest_s": durations_s.max(),
            }
        )
    return pd.DataFrame(rows)

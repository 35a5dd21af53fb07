"""Tables of one scenario: speed-up and efficiency, and values over the repeats of each configuration."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from multicard.answers.scaling.speedup import Speedup, speedups_of
from multicard.config.experiment import parameters_in
from multicard.programs import program_of
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.measures import Definition
from multicard.stats.interval import Interval, interval_columns

# Columns of measures.csv that `add_scaling` adds.
SCALING = {
    "baseline": Definition(
        "Name of the run's [baseline](statistics.md#speed-up-and-efficiency): the configuration on one device with the "
        "same other parameters, in vision runs under `single` if the scenario has it, else under the same strategy."
    ),
    "speedup": Definition(
        "Throughput of distinct samples, in LLM runs `tokens_per_s`, over that of the baseline's repeat of the same "
        "number, without one over the geometric mean of its repeats; empty without a baseline."
    ),
    "efficiency": Definition(
        "`speedup` / `devices`; empty without a baseline, and if the series completed on only one number of devices."
    ),
}


@dataclass(frozen=True)
class _RunSpeedup:
    """The speed-up of one run. All fields are None for a run that did not complete."""

    baseline: str | None = None
    speedup: float | None = None
    efficiency: float | None = None


def add_scaling(measures: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `speedup` and `efficiency` to the measures of one scenario.

    Speed-up is the throughput of a run over that of its baseline. Throughput counts distinct samples in vision runs,
    and tokens in LLM runs. The baseline has the same other parameters on one device. In vision runs its strategy is
    `single` if the scenario has that, else the same one. The repeat of the baseline with the same number counts;
    without it the geometric mean of all repeats of the baseline. Efficiency is the speed-up per device. Both are empty
    without a baseline. Efficiency is also empty if such runs were measured on one number of devices only.
    """
    by_run = _speedups_by_run(speedups_of(Results(measures).configurations()))
    rows = [by_run.get(run, _RunSpeedup()) for run in measures["run"]]
    return measures.assign(
        baseline=pd.array([row.baseline for row in rows], dtype="string"),
        speedup=pd.array([row.speedup for row in rows], dtype="Float64"),
        efficiency=pd.array([row.efficiency for row in rows], dtype="Float64"),
    )


def _speedups_by_run(all_speedups: Sequence[Speedup]) -> dict[str, _RunSpeedup]:
    """Return the speed-up of each completed run."""
    by_run: dict[str, _RunSpeedup] = {}
    for speedup in all_speedups:
        for run in speedup.configuration.completed:
            times = speedup.of_repeat(run.repeat)
            efficiency = None
            if times and speedup.has_efficiency:
                efficiency = times / speedup.configuration["devices"]
            by_run[run.run] = _RunSpeedup(speedup.baseline_words, times, efficiency)
    return by_run


def over_repeats(results: Results, values: Sequence[str], include_lost: bool = False) -> pd.DataFrame:
    """Return the mean of each value over the completed repeats of each configuration, with its interval.

    Runs on different machines are repeats of one configuration. There is a row for each configuration with a completed
    run; with `include_lost` for the others, too. Columns: the parameters; `repeats`, how many completed; and for each
    value `<value>`, `<value>_low` and `<value>_high`. They are computed by `Results.means`, but `speedup` and
    `efficiency` are those of `speedups`. Bounds are empty if nothing shows the scatter, as for a single repeat. With
    `include_lost` there is also `outcome`: `completed` if a repeat completed, else the outcome of the first run.
    """
    shown = results.on_any_machine()
    if not include_lost:
        shown = shown.completed()
    configurations = shown.configurations()
    repeats = [len(configuration.completed) for configuration in configurations]
    table = shown.parameters().assign(repeats=np.array(repeats, dtype=int))
    speedup_intervals = _speedup_intervals(speedups_of(configurations))
    for value in values:
        intervals = speedup_intervals.get(value)
        if intervals is None:
            intervals = shown.means(value)
        table = table.assign(**columns_of(value, intervals))
    if include_lost:
        table = table.assign(outcome=[_outcome(configuration) for configuration in configurations])
    return table


def _outcome(configuration: Configuration) -> str:
    if configuration.completed:
        return "completed"
    return configuration.runs[0].outcome


def speedups(results: Results) -> pd.DataFrame:
    """Return speed-up and efficiency of each configuration of one scenario, with intervals over repeats.

    There is a row for each configuration with a completed run. Columns: the parameters; `scaling`, which is `strong`,
    `weak` or `unknown` (LLM runs always scale weakly; for scripts the samples of their steps decide); `repeats`, how
    many completed; `baseline`; `speedup` and `efficiency`, each with `…_low` and `…_high`. `add_scaling` explains the
    last three.
    """
    shown = results.on_any_machine()
    all_speedups = speedups_of(shown.configurations())
    repeats = np.array([len(speedup.configuration.completed) for speedup in all_speedups], dtype=int)
    table = shown.parameters().assign(
        scaling=[speedup.scaling for speedup in all_speedups],
        repeats=repeats,
        baseline=[speedup.baseline_words for speedup in all_speedups],
    )
    for name, intervals in _speedup_intervals(all_speedups).items():
        table = table.assign(**columns_of(name, intervals))
    return table[repeats > 0].reset_index(drop=True)


def speedup_table(results: Results, always: Collection[str] = ()) -> pd.DataFrame:
    """Return `speedups` without the parameters that have one value, or that another one such as the preset decides.

    `always`: parameters that are kept in any case. If no parameter varies, the workload's main one is kept.
    """
    table = speedups(results)
    if table.empty:
        return table
    parameters = parameters_in(table)
    program = program_of(table)
    # These are always shown, after the other parameters.
    last = ("devices", "scaling")
    candidates = [name for name in parameters if name not in last]
    varied = program.varying(table, candidates) or [program.comparison.default_label]
    labels = [name for name in candidates if name in varied or name in always]
    measured = [name for name in table if name not in parameters and name not in last]
    return table[[*labels, *last, *measured]]


def throughput_of(measures: pd.DataFrame) -> str:
    """Return the column of throughput of a table of runs: in its workload's unit, or in steps if no run has that."""
    rate = program_of(measures).unit.throughput
    counts_steps = "steps_per_s" in measures and measures[rate].isna().all()
    return "steps_per_s" if counts_steps else rate


def throughputs_of(measures: pd.DataFrame) -> list[str]:
    """Return the columns of throughput to show: that of `throughput_of`, and the one in tokens if any run has it."""
    tokens = "tokens_per_s"
    rates = [throughput_of(measures)]
    if tokens in measures and tokens not in rates and measures[tokens].notna().any():
        rates.append(tokens)
    return rates


def columns_of(name: str, intervals: Sequence[Interval | None]) -> dict[str, np.ndarray]:
    """Return the columns `<name>`, `<name>_low` and `<name>_high` with a row per interval; None gives an empty row.

    >>> columns_of("speedup", [Interval(1.9, 1.8, 2.0, 3), None])
    {'speedup': array([1.9, nan]), 'speedup_low': array([1.8, nan]), 'speedup_high': array([ 2., nan])}
    """
    rows = [interval_columns(name, interval) for interval in intervals]
    columns = list(interval_columns(name, None))
    return {column: np.array([row[column] for row in rows], dtype=float) for column in columns}


def _speedup_intervals(all_speedups: Sequence[Speedup]) -> dict[str, list[Interval | None]]:
    """Return the intervals of `speedup` and of `efficiency`, each in the order of `all_speedups`."""
    means = [_shown_mean(speedup) for speedup in all_speedups]
    efficiencies = [speedup.efficiency(mean) for speedup, mean in zip(all_speedups, means, strict=True)]
    return {"speedup": means, "efficiency": efficiencies}


def _shown_mean(speedup: Speedup) -> Interval | None:
    """Return the mean speed-up. That of a baseline itself has no bounds, because it is 1 by definition."""
    if speedup.mean is not None and speedup.baseline is speedup.configuration:
        return speedup.mean.without_bounds()
    return speedup.mean

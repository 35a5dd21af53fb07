"""Tables of a scenario as CSV, for programs that compute with them: what a step costs, and speed-up."""

from pathlib import Path

import pandas as pd

from multicard.analysis.scaling.speedup import RATES, over_repeats, speedups, throughputs_of
from multicard.core.files import atomic_write
from multicard.core.layout import WRITTEN_TABLES
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of

COSTS = ("iteration_time_s", *RATES, "peak_memory_bytes", "test_accuracy")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, whole or not at all."""
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False)


def write_scenario_tables(measures: pd.DataFrame, folder: Path, synthetic: str | None = None) -> None:
    """Write the tables of one scenario's measures, those of `add_scaling`, into its folder.

    `synthetic`: whether `all` or `some` of the runs are, for a column of that name; None where none is.
    """
    # The workload's own, steps where that is not known, and tokens where they are.
    shown = {workload_of(measures).unit.throughput, *throughputs_of(measures)}
    costs = [name for name in COSTS if name in measures and (name in shown or name not in RATES)]
    for name, table in zip(WRITTEN_TABLES, (measures_table(measures, costs), speedup_table(measures)), strict=True):
        write_csv(table.assign(synthetic=synthetic) if synthetic else table, folder / f"{name}.csv")


def measures_table(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Means and intervals of `values`, one row per completed configuration, with the parameters that vary."""
    return _of_what_varies(over_repeats(measures, values))


def speedup_table(measures: pd.DataFrame) -> pd.DataFrame:
    """Give `speedups` with the parameters that vary."""
    return _of_what_varies(speedups(measures), also=("scaling",))


def _of_what_varies(table: pd.DataFrame, also: tuple[str, ...] = ()) -> pd.DataFrame:
    """Drop the parameters that all rows share, and those that follow the preset; `devices` stays, and `also`."""
    names = parameters_in(table)
    if table.empty:
        return table
    work = workload_of(table)
    found = work.varying(table, [name for name in names if name not in ("devices", *also)])
    shown = [*(found or [work.default_label]), *(["devices"] if "devices" in table else []), *also]
    return table[[name for name in shown if name in table] + [name for name in table if name not in {*names, *also}]]

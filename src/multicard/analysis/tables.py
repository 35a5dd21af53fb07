"""Tables of a scenario: measures, and speed-up."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from multicard.analysis.scaling.speedup import RATES, over_repeats, speedups, throughputs_of
from multicard.analysis.table_files import write_table
from multicard.core.layout import WRITTEN_TABLES
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of

COSTS = ("iteration_time_s", *RATES, "peak_memory_bytes", "test_accuracy")


def write_scenario_tables(
    measures: pd.DataFrame, folder: Path, notes: Sequence[str] = (), synthetic: str | None = None
) -> None:
    """Write the tables of one scenario's measures, those of `add_scaling`, into `folder`, which has its name.

    Captions and labels name the scenario, so that the tables of several can stand in one document.

    Parameters
    ----------
    measures
        One row per run.
    folder
        Where to write.
    notes
        Lines for the captions about synthetic or unlike runs, as `provenance.notes` gives them.
    synthetic
        Whether `all` or `some` of the runs are synthetic, for a column of the CSV; None where none is.
    """
    # The workload's own, steps where that is not known, and tokens where they are.
    shown = {workload_of(measures).unit.throughput, *throughputs_of(measures)}
    costs = [name for name in COSTS if name in measures and (name in shown or name not in RATES)]
    for name, table, caption in zip(
        WRITTEN_TABLES,
        (measures_table(measures, costs), speedup_table(measures)),
        ("time and memory of a step.", "speed-up over one device."),
        strict=True,
    ):
        marked = table.assign(synthetic=synthetic) if synthetic else table
        texts = [f"Scenario {folder.name}: {caption}", *(f"{note}." for note in notes)]
        write_table(marked, folder / name, " ".join(texts), f"{folder.name}-{name}")


def measures_table(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Medians and intervals of `values`, one row per completed configuration, with the parameters that vary."""
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

"""Tables as CSV, and that of speed-ups with the parameters that vary."""

from pathlib import Path

import pandas as pd

from multicard.analysis.scaling.speedup import speedups
from multicard.core.files import atomic_write
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, whole or not at all."""
    with atomic_write(path) as temporary:
        table.to_csv(temporary, index=False)


def speedup_table(measures: pd.DataFrame) -> pd.DataFrame:
    """Give `speedups` without the parameters that all rows share, or that follow the preset."""
    table = speedups(measures)
    if table.empty:
        return table
    names, work = parameters_in(table), workload_of(table)
    found = work.varying(table, [name for name in names if name not in ("devices", "scaling")])
    shown = [*(found or [work.default_label]), "devices", "scaling"]
    return table[[*shown, *(name for name in table if name not in {*names, "scaling"})]]

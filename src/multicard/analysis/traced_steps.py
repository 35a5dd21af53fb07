"""Steps of a run as its trace shows them: by each device where the launches tell, else by the host's ranges."""

from pathlib import Path

import pandas as pd

from multicard.analysis.run_files import read_activity
from multicard.core.layout import ACTIVITY
from multicard.trace.steps import DEVICE, HOST
from multicard.trace.tables import STEP, STEPS

_PLACE = ["report", "process", "rank"]


def trace_steps(folder: Path) -> pd.DataFrame:
    """Columns `report`, `process`, `rank`, `step`, `start_s`, `duration_s`; of several devices of a process the mean.

    On a GPU these are the extents of steps on the device, which the record's CUDA events time, too; a range on the host
    ends when the last kernel is launched, which may be long before it runs. Starts count from the first step of the
    report, and are to be compared within a process.
    """
    times = ["start_s", "duration_s"]
    phases = read_activity(folder / ACTIVITY / "phases.parquet", [*_PLACE, "step", "phase", *times]).to_pandas()
    host = phases.loc[phases["phase"] == STEP, [*_PLACE, "step", *times]]
    path = folder / ACTIVITY / "timeline.parquet"
    if not path.exists():
        return host
    rows = read_activity(path, [*_PLACE, "step", "scope", "extent", "start_s", "span_s"]).to_pandas()
    rows = rows[(rows["scope"] == STEP) & (rows["extent"] == DEVICE)].rename(columns={"span_s": "duration_s"})
    device = rows.groupby([*_PLACE, "step"], dropna=False)[times].mean().reset_index()
    owners = pd.MultiIndex.from_frame(host[_PLACE[:2]])
    return pd.concat((device, host[~owners.isin(pd.MultiIndex.from_frame(device[_PLACE[:2]]))]), ignore_index=True)


def has_host_extents(folder: Path) -> bool | None:
    """Whether steps of a device are those of the host, as too few launches were recorded; None without such steps."""
    path = folder / ACTIVITY / "timeline.parquet"
    if not path.exists():
        return None
    rows = read_activity(path, ["scope", "extent"]).to_pandas()
    extents = rows.loc[rows["scope"] == STEPS, "extent"]
    return None if extents.empty else bool((extents == HOST).any())

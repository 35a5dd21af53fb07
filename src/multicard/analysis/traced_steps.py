"""Steps of a run as its trace shows them: by each device where the launches tell, else by the host's ranges."""

from pathlib import Path

import pandas as pd

from multicard.analysis.run_files import read_activity
from multicard.core.layout import ACTIVITY
from multicard.trace.steps import DEVICE
from multicard.trace.tables import STEP

_PLACE = ["report", "process", "rank"]


def trace_steps(folder: Path) -> pd.DataFrame:
    """Duration of each step: columns `report`, `process`, `rank`, `step`, `duration_s`, of several devices the mean.

    On a GPU it is the extent of the step on the device, which the record's CUDA events time, too; a range on the host
    ends when the last kernel is launched, which may be long before it runs.
    """
    columns = [*_PLACE, "step", "phase", "duration_s"]
    phases = read_activity(folder / ACTIVITY / "phases.parquet", columns).to_pandas()
    host = phases.loc[phases["phase"] == STEP, [*_PLACE, "step", "duration_s"]]
    path = folder / ACTIVITY / "timeline.parquet"
    if not path.exists():
        return host
    rows = read_activity(path, [*_PLACE, "step", "scope", "extent", "span_s"]).to_pandas()
    rows = rows[(rows["scope"] == STEP) & (rows["extent"] == DEVICE)].rename(columns={"span_s": "duration_s"})
    device = rows.groupby([*_PLACE, "step"], dropna=False)["duration_s"].mean().reset_index()
    owners = pd.MultiIndex.from_frame(host[_PLACE[:2]])
    return pd.concat((device, host[~owners.isin(pd.MultiIndex.from_frame(device[_PLACE[:2]]))]), ignore_index=True)

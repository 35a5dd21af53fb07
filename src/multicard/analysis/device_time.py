"""Where a device's time goes: the parts of the activity table `timeline` that add up to its span."""

import pandas as pd

PARTS = (
    "compute", "compute and communication", "exposed communication", "exposed memory operations",
    "idle (host-bound)", "idle (before a collective)", "idle (other)",
)  # fmt: skip


def device_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each of `PARTS` in each row of the timeline; idle time of unknown cause counts as other.

    `compute` is without communication, `exposed` is without any computation (of memory operations also without any
    communication), so every moment counts once. A row is empty where kernels were not recorded.
    """
    t = timeline.filter(like="_s").astype(float)
    host, collective = t["idle_host_bound_s"].fillna(0.0), t["idle_collective_s"].fillna(0.0)
    seconds = (
        t["compute_s"] - t["overlapped_s"],
        t["overlapped_s"],
        t["exposed_communication_s"],
        t["busy_s"] - t["compute_s"] - t["exposed_communication_s"],
        host,
        collective,
        t["idle_s"] - host - collective,
    )
    return pd.DataFrame(dict(zip(PARTS, seconds, strict=True))).where(t["busy_s"].notna())

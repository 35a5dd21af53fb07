"""Where a device's time goes, by the activity table `timeline`: parts that add up to its span, and time per step."""

import pandas as pd

from multicard.trace.tables import STEP, STEPS

PARTS = (
    "compute", "compute and communication", "exposed communication", "exposed memory operations",
    "idle (host-bound)", "idle (host busy elsewhere)", "idle (before a collective)", "idle (other)",
)  # fmt: skip


OTHER = "other"
MOSTLY = 0.5  # share of the time from which on a part is most of it

# What the breakdown of a step calls them.
COMPUTE, COMMUNICATION, RANKS = "compute", "exposed communication", "waiting for other ranks"
COPIES, LAUNCHES, ELSEWHERE = "memory operations", "launch overhead", "host busy elsewhere"
OF_TRACE = {
    COMPUTE: ("compute", "compute and communication"),
    COMMUNICATION: ("exposed communication",),
    RANKS: ("idle (before a collective)",),
    COPIES: ("exposed memory operations",),
    LAUNCHES: ("idle (host-bound)",),
    ELSEWHERE: ("idle (host busy elsewhere)",),
    OTHER: ("idle (other)",),
}


def device_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each of `PARTS` in each row of the timeline; idle time of unknown cause counts as other.

    `compute` is without communication, `exposed` is without any computation (of memory operations also without any
    communication), so every moment counts once. Host-bound is idle time while the host launches work, as opposed to
    idle time while it is busy elsewhere, such as loading data. A row is empty where kernels were not recorded.
    """
    t = timeline.filter(like="_s").astype(float)
    causes = [t[f"idle_{cause}_s"].fillna(0.0) for cause in ("host_bound", "host_elsewhere", "collective")]
    seconds = (
        t["compute_s"] - t["overlapped_s"],
        t["overlapped_s"],
        t["exposed_communication_s"],
        t["busy_s"] - t["compute_s"] - t["exposed_communication_s"],
        *causes,
        t["idle_s"] - sum(causes),
    )
    return pd.DataFrame(dict(zip(PARTS, seconds, strict=True))).where(t["busy_s"].notna())


def overall(timeline: pd.DataFrame) -> pd.DataFrame:
    """Of each device the row about all steps together, or about the capture where its run's traces show no steps.

    A timeline without the column `run` is of one run.
    """
    rows = timeline[timeline["scope"] != STEP]
    of_steps = rows["scope"] == STEPS
    stepped = rows["run"].isin(rows.loc[of_steps, "run"]) if "run" in rows else of_steps.any()
    return rows[of_steps == stepped]


def per_pitch(timeline: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each device from the start of a step to the start of the next one, mean over its steps.

    The time between steps counts, so this is what a step costs the job. With `n` steps, it is the row of all steps less
    that of the last one, over n − 1; of a single step there is no pitch, and it is that step. Devices without steps
    have no row. Columns: the durations of the timeline, `extent`, and `pitches`, n − 1.
    """
    seconds = [name for name in timeline if name.endswith("_s") and name != "start_s"]
    found = []
    for _, own in timeline.groupby(["report", "process", "device"], sort=False, dropna=False):
        together, steps = own[own["scope"] == STEPS], own[own["scope"] == STEP].sort_values("step")
        if together.empty or steps.empty:
            continue
        row, pitches = together.iloc[0][seconds].astype(float), len(steps) - 1
        if pitches:
            row = (row - steps.iloc[-1][seconds].astype(float)) / pitches
        found.append({**row, "extent": together.iloc[0]["extent"], "pitches": pitches})
    return pd.DataFrame(found, columns=[*seconds, "extent", "pitches"])

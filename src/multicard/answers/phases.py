"""The phases of a step over repeats, as parts of the iteration time that all tables and figures show."""

import pandas as pd

from multicard.answers.scaling.speedup_tables import columns_of
from multicard.core.layout import EVALUATION, PHASES
from multicard.results.results import Results

STEP_TIME = "iteration_time_s"
PHASE_COLUMNS = [f"{phase}_s" for phase in (*PHASES, EVALUATION)]
OTHER = "other_s"


def mean_phases(results: Results) -> pd.DataFrame:
    """Return the iteration time of each configuration with a completed run, and the phases that add up to it.

    The iteration time is the geometric mean over repeats, as everywhere. Phases are arithmetic means over ranks,
    measured steps and repeats, all multiplied by the factor with which they add up to the iteration time. `other_s` is
    what is in no phase: also the time between steps, and by how much longer the slowest rank takes than the mean.

    Columns: the parameters, `repeats`, `iteration_time_s` with its bounds (`…_low`, `…_high`), `PHASE_COLUMNS` and
    `other_s`, all in seconds. A phase that no repeat recorded is empty. Phases without a known iteration time are the
    arithmetic means.

    Below, half of the steps is the forward pass. The geometric mean of 0.1 and 0.4 s is 0.2 s:

    >>> runs = {"run": ["a", "b"], "workload": "vision", "outcome": "completed", "repeat": [1, 2]}
    >>> times = {"iteration_time_s": [0.1, 0.4], "forward_s": [0.05, 0.2]}
    >>> phases = mean_phases(Results(pd.DataFrame(runs | times)))
    >>> phases[["iteration_time_s", "forward_s", "other_s"]].round(3).to_dict("records")
    [{'iteration_time_s': 0.2, 'forward_s': 0.1, 'other_s': 0.1}]
    """
    measures = results.on_any_machine().completed().frame()
    parts = [*PHASE_COLUMNS, OTHER]
    completed = Results(measures.assign(**_parts_of_runs(measures)))
    means = completed.mean_parts(parts)
    step_times = columns_of(STEP_TIME, completed.means(STEP_TIME))
    sums_s = means[parts].sum(axis=1)
    factors = (step_times[STEP_TIME] / sums_s.where(sums_s > 0)).fillna(1.0)
    phases = means[parts].mul(factors, axis=0)
    return means.drop(columns=parts).assign(**step_times).join(phases)


def _parts_of_runs(measures: pd.DataFrame) -> pd.DataFrame:
    """Return the phases of each run in seconds, and `other_s`, the rest of its iteration time.

    Phases that the clocks of a script count twice may take longer than the iteration time; the rest is then 0.
    """
    times_s = measures.reindex(columns=[STEP_TIME, *PHASE_COLUMNS, OTHER]).astype(float)
    phases_s = times_s[PHASE_COLUMNS]
    rest_s = (times_s[STEP_TIME] - phases_s.sum(axis=1)).clip(lower=0.0)
    is_recorded = times_s[[*PHASE_COLUMNS, OTHER]].notna().any(axis=1)
    return phases_s.assign(**{OTHER: rest_s.fillna(times_s[OTHER]).where(is_recorded)})

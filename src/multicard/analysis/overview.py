"""A scenario at a glance: one row per configuration, with its main measures over the repeats and its outcome."""

import pandas as pd

from multicard.analysis.runs.step_parts import StepPart
from multicard.analysis.scaling.speedup_tables import over_repeats, throughputs_of
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of

EXPOSED_COMMUNICATION = StepPart.COMMUNICATION.column


def measures_shown(tables: ScenarioTables) -> list[str]:
    """Names of the measures of `overview`, in order.

    Throughput is that in steps where that of the workload's unit is not known of any run; and in tokens where these are
    known.
    """
    scaling = ("speedup", "efficiency", "data_share", EXPOSED_COMMUNICATION, "peak_memory_bytes")
    return ["iteration_time_s", *throughputs_of(tables.measures), *scaling]


def overview(tables: ScenarioTables) -> pd.DataFrame:
    """One row per configuration of a scenario, in the order of its runs.

    Columns: `devices` and the parameters that vary; for each of `measures_shown` `<measure>`, `<measure>_low` and
    `<measure>_high`, as `scaling.over_repeats` gives them; `outcome`, counted where repeats differ in it (`2 completed,
    1 timed_out`); and `reason`, the distinct reasons of those that did not complete. `exposed_communication_share` is
    empty where no GPU was traced.
    """
    measures = tables.measures.reindex(columns=[*dict.fromkeys((*tables.measures, EXPOSED_COMMUNICATION))])
    found = over_repeats(measures, measures_shown(tables), include_lost=True)
    parameters = parameters_in(found)
    runs = measures.groupby(parameters, sort=False, dropna=False)
    found["outcome"] = runs["outcome"].agg(_outcomes).to_numpy()
    found["reason"] = runs["reason"].agg(lambda reasons: "; ".join(reasons.dropna().unique())).to_numpy()
    varying = workload_of(found).varying(found, [name for name in parameters if name not in ("devices", "scaling")])
    values = [name for name in found if name not in (*parameters, "repeats", "outcome", "reason")]
    return found[["devices", *varying, *values, "outcome", "reason"]]


def _outcomes(outcomes: pd.Series) -> str:
    counts = outcomes.value_counts()
    return counts.index[0] if len(counts) == 1 else ", ".join(f"{count} {outcome}" for outcome, count in counts.items())

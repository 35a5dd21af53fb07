"""A scenario at a glance: one row per configuration, with its main measures over the repeats and its outcome."""

import pandas as pd

from multicard.answers.scaling.speedup_tables import over_repeats, throughputs_of
from multicard.config.experiment import parameters_in
from multicard.programs import program_of
from multicard.results.breakdown import StepPart
from multicard.results.results import Results

EXPOSED_COMMUNICATION = StepPart.COMMUNICATION.column


def measures_shown(results: Results) -> list[str]:
    """Return the names of the measures of `overview`, in order.

    Throughput is in the workload's unit of work, or in steps if no run has that. If any run has a throughput in tokens,
    that is shown as well.
    """
    scaling = ("speedup", "efficiency", "data_share", EXPOSED_COMMUNICATION, "peak_memory_bytes")
    return ["iteration_time_s", *throughputs_of(results.frame()), *scaling]


def overview(results: Results) -> pd.DataFrame:
    """Return one row per configuration of a scenario, in the order of its runs.

    Columns: `devices` and the parameters that vary; for each of `measures_shown` the columns `<measure>`,
    `<measure>_low` and `<measure>_high` that `over_repeats` returns; `outcome`, with numbers of repeats if these differ
    in it (`2 completed, 1 timed_out`); and `reason`, the distinct reasons of repeats that did not complete.
    `exposed_communication_share` is empty if no GPU was traced.
    """
    shown = measures_shown(results)
    table = over_repeats(results, shown, include_lost=True)
    parameters = parameters_in(table)
    by_configuration = results.frame().groupby(parameters, sort=False, dropna=False)
    # Groups are in the order of the runs, as the rows of the table are.
    table["outcome"] = by_configuration["outcome"].agg(_outcomes_in_words).to_numpy()
    table["reason"] = by_configuration["reason"].agg(_reasons_in_words).to_numpy()
    candidates = [name for name in parameters if name not in ("devices", "scaling")]
    varying = program_of(table).varying(table, candidates)
    values: list[str] = []
    for measure in shown:
        values += [measure, f"{measure}_low", f"{measure}_high"]
    return table[["devices", *varying, *values, "outcome", "reason"]]


def _reasons_in_words(reasons: pd.Series) -> str:
    return "; ".join(reasons.dropna().unique())


def _outcomes_in_words(outcomes: pd.Series) -> str:
    counts = outcomes.value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())

"""The table of configurations: what each measured one gave, over its repeats, for readers who compare some of them."""

import pandas as pd

from multicard.answers.phases import mean_phases
from multicard.answers.scaling.speedup_tables import over_repeats
from multicard.core.layout import PHASES
from multicard.figures.series import configuration_names
from multicard.report.results import ReportContents
from multicard.report.tables import PageTable, numbers_table
from multicard.results.results import Results

# Measures in the table, those that any run has. Their means and intervals are those of the scenario's figures.
MEASURES = ("iteration_time_s", "throughput_samples_per_s", "tokens_per_s", "steps_per_s", "peak_memory_bytes", "mfu")
RATIOS = ("speedup", "efficiency")
# Columns by whose values a reader can choose rows.
CHOICES = ("scenario", "devices", "repeats", "outcome")


def configurations(results: Results) -> pd.DataFrame:
    """Return a row for each configuration of a scenario, also for those without a completed run.

    Columns: `configuration` (its name), `devices`, `repeats`, `outcome`, `MEASURES` and `RATIOS` with the bounds of
    their intervals (`…_low`, `…_high`), and the seconds of each phase of a step, as `mean_phases` has them. Measures
    that no run has are left out. The table is empty if the scenario has no runs.
    """
    measures = results.frame()
    if measures.empty:
        return pd.DataFrame()
    recorded = [name for name in MEASURES if name in measures and measures[name].notna().any()]
    values = [*recorded, *RATIOS]
    data = over_repeats(results, values, include_lost=True)
    parameters = list(results.parameters())
    phases = [f"{phase}_s" for phase in PHASES]
    data = data.merge(mean_phases(results)[[*parameters, *phases]], on=parameters, how="left")
    data.insert(0, "configuration", configuration_names(measures, data))
    bounds = [f"{value}{bound}" for value in values for bound in ("", "_low", "_high")]
    return data[["configuration", "devices", "repeats", "outcome", *bounds, *phases]]


def configurations_table(contents: ReportContents) -> PageTable:
    """Return the table of the configurations of all scenarios."""
    rows = []
    for scenario in contents.scenarios:
        data = configurations(scenario.results)
        if not data.empty:
            data.insert(1, "scenario", scenario.name)
            rows.append(data)
    if not rows:
        return PageTable([], [], [])
    joined = pd.concat(rows, ignore_index=True)
    # Measures that the first scenario does not have would come last.
    values = [column for name in (*MEASURES, *RATIOS) for column in (name, f"{name}_low", f"{name}_high")]
    measured = [column for column in values if column in joined]
    phases = [column for phase in PHASES if (column := f"{phase}_s") in joined]
    joined = joined[["configuration", "scenario", "devices", "repeats", "outcome", *measured, *phases]]
    return numbers_table(joined, most=len(joined)).with_choices(CHOICES)

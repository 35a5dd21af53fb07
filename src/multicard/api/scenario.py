"""The results of one scenario as tables and figures."""

import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.scaling.speedup_tables import speedup_table
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.api.display import titled, unmanaged
from multicard.core.errors import UserError
from multicard.core.layout import SCENARIO_TABLES
from multicard.core.text import counted
from multicard.experiment.figures import FIGURES


class ScenarioResults(ScenarioTables):
    """The results of one scenario, as `Results.scenario` gives them.

    `measures` has a row per run with its outcome, parameters and measures; `ablated` the same of runs that went without
    a part of their step, and trained nothing.
    """

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return self.folder.name

    @property
    def speedup(self) -> pd.DataFrame:
        """Speed-up and efficiency with their intervals, per configuration and number of devices."""
        return speedup_table(self.measures)

    def __getitem__(self, table: str) -> pd.DataFrame:
        """Rows of one gathered table of all completed runs: `steps`, `epochs`, `timeline`, `kernel_classes`, …."""
        if table not in SCENARIO_TABLES:
            raise UserError(f"no table {table} of a scenario, expected one of {', '.join(SCENARIO_TABLES)}")
        return self.table(table)

    def figure(self, name: str) -> Figure:
        """Draw a figure of the catalog (`python -m multicard.figures`). One with nothing to show says why.

        Raises `UserError` if there is no figure of that name, or it is about what the scenario does not have.
        """
        from multicard.figures.draw import draw

        if name not in FIGURES:
            raise UserError(f"no figure {name}, expected one of {', '.join(FIGURES)}")
        entry, workloads = FIGURES[name], list(self.measures["workload"].unique())
        if (entry.workload and entry.workload not in workloads) or (entry.axis and entry.axis not in self.measures):
            found = f"found the workload {', '.join(workloads)} in the scenario {self.name}"
            raise UserError(f"the figure {name} needs {entry.needs}, {found}")
        return unmanaged(draw(name, self)[0])

    def __repr__(self) -> str:
        return f"<scenario {self.name}: {counted(len(self.runs), 'run')}>"

    def _repr_html_(self) -> str:
        return titled(f"Scenario {self.name}", self.runs)

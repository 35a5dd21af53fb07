"""The results of one scenario as tables and figures."""

from collections.abc import Collection

import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.scaling.headline import headline
from multicard.answers.scaling.speedup_tables import speedup_table
from multicard.api.display import NotebookAnswer, titled, unmanaged
from multicard.config.figures import FIGURES, WidthName
from multicard.core.errors import UserError
from multicard.core.layout import SCENARIO_TABLES
from multicard.core.text import counted
from multicard.results.results import Results


class ScenarioResults:
    """The results of one scenario. `ExperimentResults.scenario` returns them."""

    def __init__(self, name: str, results: Results) -> None:
        self.name = name
        self.results = results

    @property
    def measures(self) -> pd.DataFrame:
        """One row per run that had all parts of its step: its outcome, parameters and measures."""
        return self.results.frame()

    @property
    def ablated(self) -> pd.DataFrame:
        """One row per run that left out a part of its step, and so trained nothing."""
        return self.results.ablated_frame()

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run, including runs that were not run: its `outcome` and the `reason` for it."""
        return self.results.outcomes()

    @property
    def speedup(self) -> pd.DataFrame:
        """Speed-up and efficiency with their intervals, per configuration and number of devices."""
        return self.speedup_with(())

    def speedup_with(self, parameters: Collection[str]) -> pd.DataFrame:
        """Return `speedup` with columns for these parameters, too, even if a parameter is equal in all rows."""
        return speedup_table(self.results, parameters)

    @property
    def answer(self) -> NotebookAnswer:
        """The answer that the scenario gives: a sentence, and in its `table()` the number that it states, if any."""
        return NotebookAnswer.of(headline(self.results))

    def __getitem__(self, table: str) -> pd.DataFrame:
        """Return a table gathered from the completed runs: `steps`, `epochs`, `timeline`, `kernel_classes`, ….

        Raises `UserError` if no table has that name.
        """
        if table not in SCENARIO_TABLES:
            raise UserError(f"no table {table} of a scenario, expected one of {', '.join(SCENARIO_TABLES)}")
        return self.results.table(table)

    def figure(self, name: str, width: WidthName = "page") -> Figure:
        """Draw a figure of the catalog (`python -m multicard.figures`). A figure with nothing to show says why.

        `width`: `column` (3.3 inches) or `page` (7 inches). What to know of its runs is in its `caption`.

        Raises `UserError` if there is no figure of that name, if the scenario is of another program than the
        figure needs, or if it lacks a parameter that the figure needs.
        """
        from multicard.figures.draw import draw

        self._check_figure(name)
        return unmanaged(draw(name, self.results, width)[0])

    def caption(self, name: str) -> str:
        """Return the caption of a figure: what was measured on which machine, how to read it, repeats and doubts.

        Raises `UserError` as `figure` does.
        """
        from multicard.figures.caption import caption
        from multicard.figures.draw import draw

        self._check_figure(name)
        figure, data = draw(name, self.results)
        unmanaged(figure)
        return caption(name, self.results, data)

    def _check_figure(self, name: str) -> None:
        """Raise `UserError` if there is no figure of that name, or if the scenario lacks what it needs."""
        if name not in FIGURES:
            raise UserError(f"no figure {name}, expected one of {', '.join(FIGURES)}")
        entry, workloads = FIGURES[name], list(self.measures["workload"].unique())
        is_of_others = bool(workloads) and not any(workload in entry.workloads for workload in workloads)
        if is_of_others or (entry.axis and entry.axis not in self.measures):
            scenario = f"found the workload {', '.join(workloads)} in the scenario {self.name}"
            raise UserError(f"the figure {name} needs {entry.needs}, {scenario}")

    def __repr__(self) -> str:
        return f"<scenario {self.name}: {counted(len(self.runs), 'run')}>"

    def _repr_html_(self) -> str:
        return titled(f"Scenario {self.name}", self.runs)

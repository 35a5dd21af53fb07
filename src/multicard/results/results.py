"""`Results`: the measured runs, from which answers, figures, reports and commands are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from multicard.core.errors import UserError
from multicard.core.units import BYTES, PERCENT, units_of
from multicard.experiment.config import parameters_in
from multicard.results.configuration import WHOLE_STEP, Configuration, MeasuredRun, configurations_of
from multicard.results.provenance import Provenance
from multicard.results.tables import MEASURES, RUNS_INFO, SCHEMAS, ScenarioTables, known_values, with_run
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool

SCENARIOS = "scenarios"


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of one or several scenarios, each run once; made by `Results.read` or `Results.read_scenario`.

    `runs` and `configurations` are typed, for analysis; `frame` and `table` are DataFrames, for files, notebooks and
    drawing.
    """

    # A row per run with a record: `run`, `outcome`, its parameters and measures.
    measures: pd.DataFrame
    # The provenance of each run by its name. A run without one counts as made on an unknown machine, the same for all.
    provenances: Mapping[str, Provenance] = field(default_factory=dict)
    # The files that hold these runs; none of results that were not read from a scenario's folder.
    scenarios: tuple[ScenarioTables, ...] = ()

    @classmethod
    def read(cls, folder: Path, scenarios: Sequence[str] | None = None) -> "Results":
        """Read the tables that the workflow left in a results folder, for the named `scenarios`, by default for all.

        Raises `UserError` if the folder does not exist, or a table is missing, altered or does not parse.
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder, expected the results of an experiment")
        if scenarios is None:
            scenarios = sorted(path.parent.name for path in folder.glob(f"{SCENARIOS}/*/{MEASURES}"))
        return cls.joined([cls.read_scenario(folder / SCENARIOS / name) for name in scenarios])

    @classmethod
    def read_scenario(cls, folder: Path) -> "Results":
        """Read the results of one scenario from the folder of its tables.

        Raises `UserError` if a table is missing, altered or does not parse.
        """
        return cls._of_tables(ScenarioTables(folder))

    @classmethod
    def joined(cls, results: "Sequence[Results]") -> "Results":
        """Join the results of scenarios. A run that several share is there once, as in the first that has it."""
        if len(results) == 1:
            return results[0]
        frames = [scenario.measures for scenario in results if len(scenario.measures)]
        no_runs = pd.DataFrame(columns=["run", "outcome", "workload"])
        measures = pd.concat(frames, ignore_index=True) if frames else no_runs
        provenances: dict[str, Provenance] = {}
        # Reversed, so that the first scenario with a run decides here, too.
        for scenario in reversed(results):
            provenances.update(scenario.provenances)
        tables = tuple(table for scenario in results for table in scenario.scenarios)
        return cls(measures.drop_duplicates("run", ignore_index=True), provenances, tables)

    @classmethod
    def _of_tables(cls, tables: ScenarioTables) -> "Results":
        return cls(tables.measures, tables.provenances, (tables,))

    @cached_property
    def runs(self) -> list[MeasuredRun]:
        """All runs with a record, in the order of the tables."""
        runs = []
        for row in self.measures.to_dict("records"):
            name = str(row["run"])
            values = known_values(row) | {"run": name}
            provenance = self.provenances.get(name, Provenance())
            runs.append(MeasuredRun(name, values, provenance))
        return runs

    def configurations(self) -> list[Configuration]:
        """Return the configurations that had all parts of their step, in the order of their first runs."""
        return [configuration for configuration in self._configurations if not configuration.runs[0].is_ablated]

    def ablated(self) -> list[Configuration]:
        """Return the configurations whose runs went without a part of their step, and so trained nothing."""
        return [configuration for configuration in self._configurations if configuration.runs[0].is_ablated]

    @cached_property
    def _configurations(self) -> list[Configuration]:
        return configurations_of(self.runs)

    def pool(self, measure: str) -> Pool:
        """Return the estimator of a measure over repeats, by the keys of `configurations`.

        Its means are geometric, but arithmetic for shares and for measures with a value of zero or less.
        """
        samples = {configuration.key: configuration.blocks(measure) for configuration in self.configurations()}
        numbers = [number for sample in samples.values() for number in sample.values()]
        unit = units_of(measure)
        has_logs = unit is not PERCENT and all(number > 0 for number in numbers)
        # Bytes are counted, not timed: equal repeats show that they do not scatter.
        return Pool(samples, has_logs, exact=unit is BYTES)

    def means(self, measure: str) -> list[Interval | None]:
        """Return the mean of a measure for each of `configurations`, by `pool`; None where no run has a value.

        Shares have arithmetic means, whose bounds stay within 0 and 1: here 0.1 ± 4.30 · 0.1 / √3.

        >>> shares = {"workload": "vision", "outcome": "completed", "repeat": [1, 2, 3], "data_share": [0.0, 0.1, 0.2]}
        >>> [mean] = Results(pd.DataFrame({"run": ["a", "b", "c"], **shares})).means("data_share")
        >>> round(mean.value, 3), mean.low, round(mean.high, 3)
        (0.1, 0.0, 0.348)
        """
        configurations = self.configurations()
        pool = self.pool(measure)
        means = [pool.mean(configuration.key) for configuration in configurations]
        numbers = [number for configuration in configurations for number in configuration.values(measure)]
        # Not all columns in percent are shares: an overhead may be below 0. So the values decide, too.
        is_share = units_of(measure) is PERCENT and all(0 <= number <= 1 for number in numbers)
        if not is_share:
            return means
        return [mean and mean.map(_within_one) for mean in means]

    def frame(self) -> pd.DataFrame:
        """Return a row per run that had all parts of its step: its outcome, parameters and measures."""
        has_all_parts = ~_is_ablated(self.measures)
        return self.measures[has_all_parts].reset_index(drop=True)

    def ablated_frame(self) -> pd.DataFrame:
        """Return a row per run that went without a part of its step."""
        return self.measures[_is_ablated(self.measures)].reset_index(drop=True)

    def parameters(self) -> pd.DataFrame:
        """Return the parameters without the repeat, a row for each of the configurations `on_any_machine`."""
        frame = self.frame()
        names = [name for name in parameters_in(frame) if name != "repeat"]
        return frame[names].drop_duplicates(ignore_index=True)

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a gathered table of all completed runs with all parts, `run` in the first column.

        The table `runs_info` has the rows of all runs. If nothing was recorded, the table has columns and no rows.
        Raises `KeyError` if no table has that name, `UserError` if its file cannot be read.
        """
        parts: list[pd.DataFrame] = []
        seen: set[str] = set()
        for scenario in self.scenarios:
            rows = scenario.table(name)
            # Scenarios share runs: only the first scenario with a run contributes its rows.
            new_rows = rows[~rows["run"].isin(seen)] if seen else rows
            parts.append(new_rows)
            seen.update(rows["run"].unique())
        if not parts:
            return with_run(SCHEMAS[name]).empty_table().to_pandas()
        table = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        ablated = self.measures.loc[_is_ablated(self.measures), "run"]
        if name == RUNS_INFO or ablated.empty:
            return table
        return table[~table["run"].isin(ablated)]

    def table_by_run(self, name: str) -> dict[str, pd.DataFrame]:
        """Return the rows of a gathered table by run; a run without rows is not in it."""
        by_run = self.table(name).groupby("run", sort=False)
        return {str(run): rows for run, rows in by_run}

    def outcomes(self) -> pd.DataFrame:
        """Return a row per planned run, made or not: its `outcome` and the `reason` for it."""
        outcomes = pd.concat([scenario.outcomes for scenario in self.scenarios], ignore_index=True)
        return outcomes.drop_duplicates("run", ignore_index=True)

    def reasons_not_run(self) -> list[str]:
        """Return the reason of each planned run that cannot run here."""
        return [reason for scenario in self.scenarios for reason in scenario.reasons_not_run]

    def by_scenario(self) -> "list[Results]":
        """Return the results of each scenario."""
        return [Results._of_tables(tables) for tables in self.scenarios]

    def where(self, keep: Callable[[pd.DataFrame], pd.Series]) -> "Results":
        """Return the results of the runs that `keep` selects: a function from `measures` to True or False per row."""
        is_kept = keep(self.measures)
        return replace(self, measures=self.measures[is_kept])

    def completed(self) -> "Results":
        """Return the results of the completed runs."""
        return self.where(lambda measures: measures["outcome"] == "completed")

    def with_columns(self, **columns: pd.Series) -> "Results":
        """Return the results with further or other columns of measures, whose rows are those of `measures`."""
        return replace(self, measures=self.measures.assign(**columns))

    def with_values(self, values: pd.DataFrame) -> "Results":
        """Return the results with further columns of measures: `values` has a row per run, named by its index."""
        measures = self.measures.merge(values, how="left", left_on="run", right_index=True)
        return replace(self, measures=measures)

    def on_any_machine(self) -> "Results":
        """Return the results as if all runs had been made on the same machine with the same versions.

        Runs on several machines are then repeats of one configuration, as figures show them, with a line that says so.
        """
        return replace(self, provenances={})


def _within_one(share: float) -> float:
    return min(1.0, max(0.0, share))


def _is_ablated(measures: pd.DataFrame) -> pd.Series:
    if "ablate" not in measures:
        return pd.Series(False, index=measures.index)
    return measures["ablate"].fillna(WHOLE_STEP) != WHOLE_STEP

"""`Results`: the measured runs of one or several scenarios. Analyses, figures, reports and commands start from it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from multicard.config.experiment import parameters_in
from multicard.core.errors import UserError
from multicard.core.units import BYTES, PERCENT, units_of
from multicard.results.configuration import WHOLE_STEP, Configuration, MeasuredRun, configurations_of
from multicard.results.provenance import Provenance
from multicard.results.tables import (
    MEASURES,
    OUTCOME_COLUMNS,
    RUNS_INFO,
    SCHEMAS,
    ScenarioTables,
    known_values,
    with_run,
)
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
    # The provenance of each run by its name. A run that is missing here gets `Provenance()`, so all such runs count as
    # made on one unknown machine.
    provenances: Mapping[str, Provenance] = field(default_factory=dict)
    # The tables of each scenario that was read; empty if the results were not read from folders.
    scenarios: tuple[ScenarioTables, ...] = ()
    # Names of the runs that skipped a part of their step and that `where` left out of `measures`.
    left_out_ablated: frozenset[str] = frozenset()
    # By run how often the results are looked at (`looks_by_run`), as far as `scenarios` do not state it.
    stated_looks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, scenarios: Sequence[str] | None = None) -> "Results":
        """Read the tables that the workflow wrote to a results folder.

        `scenarios`: names of the scenarios to read, by default all that have a table of measures.

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
        """Join the results of several scenarios.

        A run that several scenarios have is taken once, from the first of them.
        """
        if len(results) == 1:
            return results[0]
        frames = [scenario.measures for scenario in results if len(scenario.measures)]
        no_runs = pd.DataFrame(columns=["run", "outcome", "workload"])
        measures = pd.concat(frames, ignore_index=True) if frames else no_runs
        provenances: dict[str, Provenance] = {}
        # Reversed, so that the provenance of a shared run, too, is from the first scenario that has the run.
        for scenario in reversed(results):
            provenances.update(scenario.provenances)
        tables = tuple(table for scenario in results for table in scenario.scenarios)
        left_out = frozenset[str]().union(*(scenario.left_out_ablated for scenario in results))
        return cls(measures.drop_duplicates("run", ignore_index=True), provenances, tables, left_out)

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
            looks = self._looks.get(name, 1)
            runs.append(MeasuredRun(name, values, provenance, looks, tuple(self._scenarios_by_run.get(name, ()))))
        return runs

    @cached_property
    def _scenarios_by_run(self) -> Mapping[str, list[str]]:
        """The names of the scenarios that have each run, by the run's name; a run of no known scenario is missing."""
        names: dict[str, list[str]] = defaultdict(list)
        for scenario in self.scenarios:
            for run in scenario.measures["run"]:
                names[run].append(scenario.name)
        return names

    @cached_property
    def _looks(self) -> Mapping[str, int]:
        """By run how often the results of its scenario are looked at; a run that is missing here is looked at once."""
        return {**self.stated_looks, **looks_by_run(self.scenarios)}

    def configurations(self) -> list[Configuration]:
        """Return the configurations whose runs skipped no part of their step, in the order of their first runs."""
        return [configuration for configuration in self._configurations if not configuration.runs[0].is_ablated]

    def ablated(self) -> list[Configuration]:
        """Return the configurations whose runs skipped a part of their step, in the order of their first runs."""
        return [configuration for configuration in self._configurations if configuration.runs[0].is_ablated]

    @cached_property
    def _configurations(self) -> list[Configuration]:
        return configurations_of(self.runs)

    def pool(self, measure: str) -> Pool:
        """Return the estimator of a measure over repeats. Its keys are those of `configurations` (`Configuration.key`).

        Its means are geometric. They are arithmetic if the measure is shown in percent, or if any of its values is zero
        or less.
        """
        samples = {configuration.key: configuration.blocks(measure) for configuration in self.configurations()}
        numbers = [number for sample in samples.values() for number in sample.values()]
        unit = units_of(measure)
        has_logs = unit is not PERCENT and all(number > 0 for number in numbers)
        # Bytes are counted, not timed, so repeats with equal bytes show that there is no scatter.
        return Pool(samples, has_logs, exact=unit is BYTES)

    def means(self, measure: str) -> list[Interval | None]:
        """Return the mean of a measure for each of `configurations`, by `pool`; None if no run of it has a value.

        The mean of a share is arithmetic, and its bounds are cut to the range from 0 to 1. The bounds of this mean are
        0.1 ± 4.30 · 0.1 / √3 before they are cut:

        >>> shares = {"workload": "vision", "outcome": "completed", "repeat": [1, 2, 3], "data_share": [0.0, 0.1, 0.2]}
        >>> [mean] = Results(pd.DataFrame({"run": ["a", "b", "c"], **shares})).means("data_share")
        >>> round(mean.value, 3), mean.low, round(mean.high, 3)
        (0.1, 0.0, 0.348)
        """
        configurations = self.configurations()
        pool = self.pool(measure)
        means = [pool.mean(configuration.key) for configuration in configurations]
        numbers = [number for configuration in configurations for number in configuration.values(measure)]
        # Not every measure in percent is a share: an overhead may be below 0. So the values must be from 0 to 1, too.
        is_share = units_of(measure) is PERCENT and all(0 <= number <= 1 for number in numbers)
        if not is_share:
            return means
        return [mean and mean.map(_within_one) for mean in means]

    def mean_parts(self, parts: list[str]) -> pd.DataFrame:
        """Return the mean of each part of a whole, such as the phases of a step: a row per configuration.

        `parts`: the columns of `measures` with the parts. Columns of the result: the parameters, `repeats` (how many
        completed), and the parts. A part that no repeat recorded is empty.

        Means are arithmetic, so that they add up to the mean of the whole. A repeat that recorded some of the parts
        spent no time in the others, so that these count as 0. A repeat without any part does not count. Below, steps
        take 3 and 1 s, so 2 s on average:

        >>> runs = {"run": ["a", "b"], "workload": "vision", "outcome": "completed", "repeat": [1, 2]}
        >>> phases = {"forward_s": [1.0, 1.0], "evaluation_s": [2.0, None], "data_s": [None, None]}
        >>> Results(pd.DataFrame(runs | phases)).mean_parts(["forward_s", "evaluation_s", "data_s"])
          workload  repeats  forward_s  evaluation_s  data_s
        0   vision        2        1.0           1.0     NaN
        """
        completed = self.completed().frame()
        recorded = completed[parts].astype(float)
        has_parts = recorded.notna().any(axis=1)
        with_zeros = recorded.fillna(0.0).where(has_parts, axis=0)
        parameters = [completed[name] for name in self.parameters()]
        recorded_of_configuration = recorded.groupby(parameters, sort=False, dropna=False)
        means = with_zeros.groupby(parameters, sort=False, dropna=False).mean()
        means = means.where(recorded_of_configuration.count() > 0)
        return pd.DataFrame({"repeats": recorded_of_configuration.size(), **means}).reset_index()

    def frame(self) -> pd.DataFrame:
        """Return the rows of `measures` for the runs that skipped no part of their step."""
        has_all_parts = ~_is_ablated(self.measures)
        return self.measures[has_all_parts].reset_index(drop=True)

    def ablated_frame(self) -> pd.DataFrame:
        """Return the rows of `measures` for the runs that skipped a part of their step."""
        return self.measures[_is_ablated(self.measures)].reset_index(drop=True)

    @cached_property
    def _ablated_runs(self) -> frozenset[str]:
        """Names of the runs that skipped a part of their step, those that `where` left out included."""
        return self.left_out_ablated.union(self.measures.loc[_is_ablated(self.measures), "run"])

    def parameters(self) -> pd.DataFrame:
        """Return the parameters without `repeat`, a row for each combination of values that occurs in `frame`."""
        frame = self.frame()
        names = [name for name in parameters_in(frame) if name != "repeat"]
        return frame[names].drop_duplicates(ignore_index=True)

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a gathered table, with `run` as the first column.

        The rows are those of all completed runs of `scenarios`, also of runs that `where` left out of `measures`.
        Runs that skipped a part of their step are left out, whether `where` left them out of `measures` or not. The
        table `runs_info` has the rows of all runs. If nothing was recorded, the table has columns and no rows.

        Raises `KeyError` if no table has that name, `UserError` if its file cannot be read.
        """
        parts: list[pd.DataFrame] = []
        seen: set[str] = set()
        for scenario in self.scenarios:
            rows = scenario.table(name)
            # Scenarios may share a run. Its rows are taken from the first of them only.
            new_rows = rows[~rows["run"].isin(seen)] if seen else rows
            parts.append(new_rows)
            seen.update(rows["run"].unique())
        if not parts:
            return with_run(SCHEMAS[name]).empty_table().to_pandas()
        table = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        ablated = self._ablated_runs
        if name == RUNS_INFO or not ablated:
            return table
        return table[~table["run"].isin(ablated)]

    def table_by_run(self, name: str) -> dict[str, pd.DataFrame]:
        """Return the rows of a gathered table by run; a run without rows in the table has no entry."""
        by_run = self.table(name).groupby("run", sort=False)
        return {str(run): rows for run, rows in by_run}

    def outcomes(self) -> pd.DataFrame:
        """Return a row per planned run, whether it was made or not: its `outcome` and the `reason` for it.

        Without `scenarios`, there are no rows.
        """
        tables = [scenario.outcomes for scenario in self.scenarios] or [pd.DataFrame(columns=OUTCOME_COLUMNS)]
        return pd.concat(tables, ignore_index=True).drop_duplicates("run", ignore_index=True)

    def reasons_not_run(self) -> list[str]:
        """Return why each planned run that cannot run here cannot; for a shared run, what its first scenario says."""
        reasons: dict[str, str] = {}
        for scenario in self.scenarios:
            for run, reason in scenario.reasons_not_run.items():
                reasons.setdefault(run, reason)
        return list(reasons.values())

    def by_scenario(self) -> "list[Results]":
        """Return the results of each scenario, with all runs of the scenario."""
        return [Results._of_tables(tables) for tables in self.scenarios]

    def where(self, keep: Callable[[pd.DataFrame], pd.Series]) -> "Results":
        """Return the results with some rows of `measures`: `keep` returns True or False for each row of the table.

        The gathered tables (`table`) and `outcomes` keep the rows of all runs.
        """
        is_kept = keep(self.measures)
        return replace(self, measures=self.measures[is_kept], left_out_ablated=self._ablated_runs)

    def completed(self) -> "Results":
        """Return the results with the rows of `measures` of the completed runs."""
        return self.where(lambda measures: measures["outcome"] == "completed")

    def with_columns(self, **columns: pd.Series) -> "Results":
        """Return the results with columns of `measures` added or replaced; each column has the index of `measures`."""
        return replace(self, measures=self.measures.assign(**columns))

    def with_values(self, values: pd.DataFrame) -> "Results":
        """Return the results with the columns of `values` added to `measures`.

        The index of `values` holds names of runs. A run that it lacks gets empty cells.
        """
        measures = self.measures.merge(values, how="left", left_on="run", right_index=True)
        return replace(self, measures=measures)

    def on_any_machine(self) -> "Results":
        """Return the results as if all runs had been made on the same machine with the same versions.

        Equal runs on several machines are then repeats of one configuration. Figures show them like this, and say so.
        """
        return replace(self, provenances={})


def looks_by_run(scenarios: Iterable[ScenarioTables]) -> dict[str, int]:
    """Return how often the results of each run are looked at while repeats are added (`stats.looks`), if several times.

    Of several scenarios that have a run, the one that is looked at most often counts.
    """
    looks: dict[str, int] = {}
    for scenario in scenarios:
        if scenario.looks > 1:
            for run in scenario.measures["run"]:
                looks[run] = max(scenario.looks, looks.get(run, 1))
    return looks


def _within_one(share: float) -> float:
    return min(1.0, max(0.0, share))


def _is_ablated(measures: pd.DataFrame) -> pd.Series:
    if "ablate" not in measures:
        return pd.Series(False, index=measures.index)
    return measures["ablate"].fillna(WHOLE_STEP) != WHOLE_STEP

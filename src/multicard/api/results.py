"""Read the results of an experiment as tables and figures."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.choice.applied import Request
from multicard.answers.choice.choices import as_table, choices
from multicard.answers.choice.recommend import advise, as_markdown
from multicard.answers.comparison.results import Comparison, compare
from multicard.answers.comparison.sides import Side, read_side
from multicard.answers.scaling.prediction import PredictionCheck
from multicard.answers.scaling.series import series
from multicard.answers.scaling.series_tables import checked_line, checks_table, predictions_table
from multicard.api.display import Markdown, NotebookAnswer, titled
from multicard.api.scenario import ScenarioResults
from multicard.config.experiment import ARCHIVE, Experiment, parameters_in
from multicard.config.figures import WidthName
from multicard.config.load import read_experiment
from multicard.config.runs import expand
from multicard.core.errors import UserError
from multicard.core.files import sha256
from multicard.core.layout import MACHINES, RUN
from multicard.papers.tables import claims_table, judge_papers
from multicard.report.assemble import Drawn, check_free, draw, measure
from multicard.report.proposal.document import write_proposal
from multicard.report.proposal.propose import propose
from multicard.report.results import ScenarioPlan, read_records
from multicard.results.results import SCENARIOS, Results, looks_by_run
from multicard.results.tables import MEASURES, ScenarioTables
from multicard.share.allowed import Allowed
from multicard.share.manifest import experiment_of
from multicard.share.unpack import unpack


def holds_results(path: Path) -> bool:
    """Return whether a path is an archive of recorded runs or a folder of results, rather than a trace."""
    return _is_archive(path) or (path.is_dir() and any(path.glob(f"runs/*/{RUN}")))


def read_results(path: str | Path, config: str | Path | None = None) -> "ExperimentResults":
    """Read what an experiment measured.

    Parameters
    ----------
    path
        The `results` folder of an experiment, an archive of recorded runs (`.tar.gz`), or a configuration (`.yaml`):
        then the folder of results that it names is read.
    config
        Configuration of the experiment. With a configuration, the tables of the scenarios are computed from the runs in
        the folder; without one, the tables that the workflow left in the folder are read. An archive contains its
        configuration and accepts no other.

    Raises `UserError` if there are no results, if the archive or the configuration cannot be read, or if an archive is
    given with a configuration.

    Examples
    --------
    >>> import multicard
    >>> results = multicard.read_results("results")  # doctest: +SKIP
    >>> results.speedup[["scenario", "devices", "speedup", "efficiency"]]  # doctest: +SKIP
    >>> results.figure("speedup", scenario="strategies")  # doctest: +SKIP
    """
    path = Path(path)
    if config is None and path.suffix in (".yaml", ".yml"):
        path, config = Path(read_experiment(path, outside=False).results), path
    if _is_archive(path):
        if config is not None:
            raise UserError(f"{config}: {path} has its own configuration, expected no other")
        scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        unpacked = Path(scratch.name) / "unpacked"
        runs = unpacked / "runs"
        runs.mkdir(parents=True)
        manifest = unpack(path, runs, unpacked / MACHINES)
        return ExperimentResults(path, runs, lambda: experiment_of(manifest, path), scratch)
    if not path.is_dir():
        raise UserError(f"{path}: no such folder, expected the results of an experiment")
    if not any(path.glob(f"runs/*/{RUN}")) and (config is not None or not any(path.glob(f"scenarios/*/{MEASURES}"))):
        places = f"runs/*/{RUN}" if config is not None else f"runs/*/{RUN} or scenarios/*/{MEASURES}"
        raise UserError(f"{path}: found no results, expected a folder with {places}, or {ARCHIVE}")
    if config is None:
        return ExperimentResults(path, path / "runs")
    experiment = read_experiment(Path(config), outside=False)
    return ExperimentResults(
        path, path / "runs", lambda: experiment, tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    )


class ExperimentResults:
    """What an experiment measured. `read_results` returns it; `path` is the folder or archive.

    Tables are pandas DataFrames. The names of columns state units: `_s` seconds, `_bytes` bytes, `_j` joules, `_share`
    a share from 0 to 1. What was not measured is NaN.
    """

    def __init__(
        self,
        path: Path,
        runs: Path,
        experiment: Callable[[], Experiment] | None = None,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.path = path
        self._runs, self._experiment, self._scratch = runs, experiment, scratch
        self._scenarios: dict[str, ScenarioResults] = {}

    @cached_property
    def _measured(self) -> tuple[Path, dict[str, ScenarioPlan]]:
        """The folder with the tables of the scenarios, and the plan of each scenario; no plans without a configuration.

        With a configuration, the tables are computed when this is first used.
        """
        if self._experiment is None or self._scratch is None:
            return self.path, {}
        folder = Path(self._scratch.name) / "measured"
        folder.mkdir(exist_ok=True)
        with self._naming_members():
            return folder, measure(self._experiment(), self._runs, self.path, folder)

    @contextmanager
    def _naming_members(self) -> Iterator[None]:
        """Have error messages name the archive instead of the folder that it was unpacked to."""
        try:
            yield
        except UserError as error:
            if not _is_archive(self.path):
                raise
            raise UserError(str(error).replace(f"{self._runs.parent}{os.sep}", f"{self.path}: ")) from None

    @cached_property
    def scenarios(self) -> list[str]:
        """Names of the scenarios that were measured. Raises `UserError` if there are none."""
        folder, plans = self._measured
        names = list(plans) or sorted(path.parent.name for path in folder.glob(f"scenarios/*/{MEASURES}"))
        if not names:
            raise UserError(f"{self.path}: found no scenarios/*/{MEASURES}, expected results of an experiment")
        return names

    def scenario(self, name: str | None = None) -> "ScenarioResults":
        """Return the results of one scenario; its name may be left out if there is only one.

        Raises `UserError` if no scenario has that name.
        """
        if name is None and len(self.scenarios) == 1:
            name = self.scenarios[0]
        if name not in self.scenarios:
            problem = "several scenarios" if name is None else f"no scenario {name}"
            raise UserError(f"{self.path}: found {problem}, expected one of {', '.join(self.scenarios)}")
        if name not in self._scenarios:
            folder = self._measured[0] / SCENARIOS / name
            self._scenarios[name] = ScenarioResults(name, Results.read_scenario(folder))
        return self._scenarios[name]

    @property
    def measures(self) -> pd.DataFrame:
        """One row per scenario and run: `scenario`, `run`, `outcome`, its parameters and measures."""
        return self._of_scenarios(lambda scenario: scenario.measures)

    @property
    def runs(self) -> pd.DataFrame:
        """One row per scenario and run, including runs that were not run: its `outcome` and the `reason` for it."""
        return self._of_scenarios(lambda scenario: scenario.runs)

    @property
    def speedup(self) -> pd.DataFrame:
        """Speed-up and efficiency with their intervals, per scenario, configuration and number of devices."""
        # Parameters that are equal in all rows of one scenario may differ between scenarios, so none is dropped.
        parameters: set[str] = set()
        for name in self.scenarios:
            parameters.update(parameters_in(self.scenario(name).speedup))
        return self._of_scenarios(lambda scenario: scenario.speedup_with(parameters))

    @property
    def steps(self) -> pd.DataFrame:
        """One row per run, rank and step: `window` (warmup, measured, profiled), durations and memory."""
        steps = pd.concat([self.scenario(name)["steps"] for name in self.scenarios], ignore_index=True)
        # Scenarios may share runs.
        return steps.drop_duplicates(["run", "rank", "step"], ignore_index=True)

    def figure(self, name: str, scenario: str | None = None, width: WidthName = "page") -> Figure:
        """Draw a figure of the catalog for one scenario; see `ScenarioResults.figure` and `scenario`."""
        return self.scenario(scenario).figure(name, width)

    def caption(self, name: str, scenario: str | None = None) -> str:
        """Return the caption of a figure for one scenario; see `ScenarioResults.caption` and `scenario`."""
        return self.scenario(scenario).caption(name)

    def claims(self) -> pd.DataFrame:
        """Check the claims of the two papers against the measurements, a row per claim.

        The `verdict` is `confirmed`, `refuted`, `not decided`, `not judged` or `not measured here`.
        """
        return claims_table(judge_papers(self._results))

    def recommendations(self, verbose: bool = True) -> Markdown:
        """Return how much faster more devices are, where the time of a step goes, and what to try next, as Markdown.

        `verbose`: True to include the table of choices, and all options.
        """
        return Markdown(as_markdown(self._results, verbose))

    def answers(self) -> list[NotebookAnswer]:
        """Return the answers for each job: how many devices, which configuration, where time goes, what to try next.

        Each answer has a `question`, a `sentence` and `caveats`. `figure` is the name of a figure that shows the
        numbers, None if there is none; `table()` returns the numbers.
        """
        return [NotebookAnswer.of(answer) for job in advise(self._results).jobs for answer in job.answers]

    def choices(self) -> pd.DataFrame:
        """Return the speed of training in each configuration, on every number of devices that was measured.

        Returns
        -------
        pandas.DataFrame
            One row per configuration. Configurations of which no run completed come last; their `lost` says how the
            runs ended. The other columns:

            - `job`, `machine`, `versions`, `device`, `devices`, `configuration` and `unit` (in which work is counted);
            - `recipe`, `learning` (what decides how much is learned) and `changes` (what of that differs from the job's
              reference training);
            - `throughput_per_s` (in `unit`), `speedup` over one device, and `time_s` of the whole training: means of
              `repeats` runs, each with the bounds `…_low` and `…_high`, which are empty for one repeat;
            - `device_hours` and `peak_memory_bytes`;
            - `not_worse`: False if the configuration is shown to be slower than the fastest one of the same training on
              as many devices.
        """
        return as_table(choices(self._results))

    def predictions(self, devices: Sequence[int]) -> "Predictions":
        """Predict step time, throughput and speed-up on numbers of devices; see docs/predicting.md."""
        return Predictions(self._results, devices)

    def compare(
        self, new: "ExperimentResults", tolerance: float | None = None, measures: Sequence[str] | None = None
    ) -> Comparison:
        """Compare with newer results, configuration by configuration.

        Its `table` has a row per configuration and measure: `a`, `b`, the `change` with its interval, the `verdict`.

        Parameters
        ----------
        new
            The newer results. An archive has digests in place of the names of machines, and only those versions and
            variables that identify nobody. If either side is an archive, both sides are compared in this form.
        tolerance
            Share by which a measure may be worse, such as 0.05; None to report every difference. With a tolerance,
            sides that were measured in different sessions (days, nodes) get no verdict unless the repeats of each side
            span several sessions.
        measures
            Some of `iteration_time`, `throughput`, `speedup`, `memory`, `energy`, `accuracy`, `loss`. By default all
            that were measured are compared; throughput only if there are no iteration times.
        """
        from_archive = _is_archive(self.path) or _is_archive(new.path)
        # Leaves in a record what an archive would have of it, so that both sides state the same facts.
        redact = Allowed().record if from_archive else None
        return compare(self._side, new._side, tolerance, measures, redact)

    def draw(self, out: str | Path, width: WidthName | None = None) -> Drawn:
        """Write all tables, figures, conclusions and the report, as the workflow does after its runs.

        They are written to the folder `out`, which must be empty or not exist; if an error is raised while they are
        made, nothing is written.

        `width`: `column` (3.3 inches) or `page` (7 inches) for all figures; None for what the configuration says.

        Raises `UserError` if `out` is not empty, the configuration is not known, or a run is damaged.
        """
        check_free(Path(out))
        if self._experiment is None:
            raise UserError(f"{self.path}: has no configuration; pass the configuration file of these runs")
        folder, plans = self._measured
        return draw(folder, plans, Path(out), width or self._experiment().figure_width)

    def proposal(self, out: str | Path, request: Request, scenario: str | None = None) -> list[Path]:
        """Write one page for an application for computing time: Markdown, with its figure in an SVG file.

        Return the files that were written.

        `out`: a name that ends in .md. `request`: what is applied for. `scenario`: name of the only scenario whose runs
        are used; None for the runs of all scenarios.

        Raises `UserError` if nothing was measured on the devices, or with the measure that the work needs.
        """
        results = self._results if scenario is None else self.scenario(scenario).results
        records = read_records(self._measured[0], [run.run for run in results.runs])
        kept = [("Archive", f"{self.path.name}, sha256 {sha256(self.path)[:12]}")] if _is_archive(self.path) else []
        return write_proposal(propose(results, records, request, kept), Path(out))

    def __repr__(self) -> str:
        return f"<results {self.path}: {', '.join(self.scenarios)}>"

    def _repr_html_(self) -> str:
        counts = self.runs.groupby(["scenario", "outcome"], sort=False).size().unstack(fill_value=0).reset_index()
        counts.columns.name = None
        return titled(f"Results {self.path}", counts)

    @cached_property
    def _side(self) -> Side:
        with self._naming_members():
            return read_side(sorted(path.parent for path in self._runs.glob(f"*/{RUN}")), self._looks)

    @property
    def _looks(self) -> dict[str, int]:
        """By run how often the results are looked at while repeats are added, if several times.

        The configuration states it, or the tables of the scenarios. Unlike other properties, this computes no tables.
        """
        if self._experiment is None:
            measured = self.path.glob(f"{SCENARIOS}/*/{MEASURES}")
            return looks_by_run(ScenarioTables(path.parent) for path in measured)
        experiment = self._experiment()
        looks: dict[str, int] = {}
        for name, runs in expand(experiment).items():
            for run in runs:
                looks[run.id] = max(experiment.scenarios[name].repeats.looks, looks.get(run.id, 1))
        return looks

    @cached_property
    def _results(self) -> Results:
        return Results.joined([self.scenario(name).results for name in self.scenarios])

    def _of_scenarios(self, table: Callable[["ScenarioResults"], pd.DataFrame]) -> pd.DataFrame:
        parts = []
        for name in self.scenarios:
            rows = table(self.scenario(name))
            parts.append(rows.assign(scenario=name)[["scenario", *rows.columns]])
        # Empty tables are left out because they would change the types of columns. If all are empty, the first one is
        # kept for its columns.
        filled_parts = [part for part in parts if len(part)] or parts[:1]
        return pd.concat(filled_parts, ignore_index=True)


class Predictions:
    """Predictions for every configuration, and how predictions of measured runs turned out.

    Attributes
    ----------
    predictions
        A row per configuration and number of devices: `step_time_s`, `throughput_per_s` and `speedup`, each with the
        bounds `…_low` and `…_high`; `measured`, the numbers of devices that the prediction is made from; `caveats`. If
        nothing can be predicted, `reason` says why.
    checks
        A row per configuration and measured number of devices that can be predicted from smaller ones: `predicted_s`
        with `…_low` and `…_high`, `measured_s`, `prediction_error` (predicted time divided by measured time, minus 1)
        and `inside` (whether the measured time is inside the interval).
    verdicts
        A sentence for each machine, on whether predictions were checked there, and how they turned out.
    units
        The unit that `throughput_per_s` counts, by `configuration`.
    """

    def __init__(self, results: Results, devices: Sequence[int]) -> None:
        all_series = series(results)
        self.predictions = predictions_table(all_series, devices)
        self.checks = checks_table(all_series)
        self.units = {line.words: line.largest.program.unit.name for line in all_series}
        checks_by_machine: dict[str | None, list[PredictionCheck]] = {}
        for line in all_series:
            machine = line.largest.provenance.kind
            checks_by_machine.setdefault(machine, []).extend(line.checks)
        self.verdicts = [
            f"{machine or 'machine unknown'}: {checked_line(checks)}" for machine, checks in checks_by_machine.items()
        ]


def _is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVE) and not path.is_dir()

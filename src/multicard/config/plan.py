"""An experiment's runs, and which of them can run on the machine or cluster that they are planned for."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from multicard.config.added_repeats import open_scenarios, with_least
from multicard.config.cluster import machine_for
from multicard.config.experiment import Experiment
from multicard.config.order import planned_order
from multicard.config.read_run import read_run
from multicard.config.runs import Run, distinct, expand, expand_scenario
from multicard.core.errors import UserError
from multicard.core.layout import CAPTURED, EPOCHS, RUN, STEPS, TRACE
from multicard.core.prepared import PROVENANCE, folder_name
from multicard.core.text import counted
from multicard.core.values import JsonObject
from multicard.programs.machine import Machine
from multicard.runs.record import Place

# Two properties of the inputs of a run, by the parameter that names an input: the folder that holds all prepared inputs
# of its sort, and the name of the input in the rule that launches a run.
INPUT_FOLDERS = {"dataset": "data", "model": "data/models"}
INPUT_NAMES = {"dataset": "data", "model": "model"}


@dataclass(frozen=True)
class Plan:
    """All runs of an experiment, made by `Plan.make`: which can run, in which order, and why others cannot run."""

    experiment: Experiment
    # The runs of each scenario, in order. Scenarios may share runs.
    scenarios: dict[str, list[Run]]
    # All runs by id.
    runs: dict[str, Run]
    # The machine that the runs are planned for: this one, or a node of the cluster.
    machine: Machine
    # By the id of each run the reason why it cannot have results; None if it can run here or was measured elsewhere.
    reasons: dict[str, str | None]
    # Ids of runs that cannot run here, but were measured elsewhere: their results are in the folder of results.
    measured: frozenset[str] = frozenset()

    @classmethod
    def make(cls, experiment: Experiment) -> "Plan":
        """Expand an experiment, and plan its runs for the cluster that it states, else for this machine."""
        scenarios = expand(experiment)
        runs = distinct(scenarios)
        machine = machine_for(experiment.cluster)
        reasons = {name: _reason(run, machine) for name, run in runs.items()}
        results = Path(experiment.results) / "runs"
        # Runs that cannot run here may have been measured elsewhere.
        measured = frozenset(name for name, run in runs.items() if reasons[name] and _has_record(results / name, run))
        return cls(experiment, scenarios, runs, machine, reasons | dict.fromkeys(measured), measured)

    def runnable(self, scenario: str | None = None) -> list[str]:
        """Return the ids of the runs that can run or were measured, of one scenario or of all."""
        return [run for run in self._ids(scenario) if self.reasons[run] is None]

    def not_runnable(self, scenario: str | None = None) -> dict[str, str]:
        """Return the reasons by id of the runs that are not `runnable`, of one scenario or of all."""
        reasons = {run: self.reasons[run] for run in self._ids(scenario)}
        return {run: reason for run, reason in reasons.items() if reason is not None}

    def _ids(self, scenario: str | None) -> list[str]:
        """Return the ids of the runs of a scenario, or of all scenarios."""
        return list(self.runs) if scenario is None else [run.id for run in self.scenarios[scenario]]

    def prepared(self, run: str) -> dict[str, str]:
        """Return the provenance files of a run's inputs, under `data` for a data set and `model` for a model."""
        folders = _input_folders(self.runs[run])
        return {INPUT_NAMES[parameter]: f"{folder}/{PROVENANCE}" for parameter, folder in folders.items()}

    def undecided_data(self) -> list[str]:
        """Return the provenance files of data sets that have to be prepared before it is known which runs can run.

        The number of samples of such a data set is known only once it is prepared, and may be too small for a planned
        run. Left out are data sets that are prepared already, and those that are needed only by runs that have a
        record.
        """
        undecided = set()
        for name in self.without_record():
            run = self.runs[name]
            folder = _data_folder(run)
            if folder is None:
                continue
            is_stated = run.program.inputs["dataset"].sample_count(run.inputs["dataset"]) is not None
            if not is_stated and not (folder / PROVENANCE).exists():
                undecided.add(str(folder / PROVENANCE))
        return sorted(undecided)

    def all_prepared(self) -> list[str]:
        """Return the provenance files of all data sets and models of runs, except runs that were measured elsewhere."""
        needed = self.runs.keys() - self.measured
        return sorted({file for run in needed for file in self.prepared(run).values()})

    def scenario_plans(self) -> dict[str, JsonObject]:
        """Return the question and the names of the figures of every scenario; no figures if it has no run to show."""
        drawn = self.figures()
        return {
            name: {"question": scenario.question, "figures": drawn.get(name, [])}
            for name, scenario in self.experiment.scenarios.items()
        }

    def figures(self) -> dict[str, list[str]]:
        """Return the names of the figures of every scenario that has a run to show."""
        return {
            name: list(scenario.figures) for name, scenario in self.experiment.scenarios.items() if self.runnable(name)
        }

    @cached_property
    def order(self) -> dict[str, Place]:
        """Places of all runs by id, in the order in which they start."""
        return planned_order(self.scenarios, self.experiment.order_seed)

    def group_of(self, scenario: str) -> tuple[str, ...]:
        """Return the names of the scenarios that share runs with a scenario, itself included; see `planned_order`."""
        first_run = self.scenarios[scenario][0]
        return self.order[first_run.id].group

    def planned(self) -> list[str]:
        """Return the ids of the runs that are to run here, in the order in which they start."""
        return [run for run in self.order if self.reasons[run] is None and run not in self.measured]

    def without_record(self) -> list[str]:
        """Return the ids of the `planned` runs that have no record yet, in the order in which they start."""
        folder = Path(self.experiment.results) / "runs"
        return [run for run in self.planned() if not (folder / run / RUN).exists()]

    def further_runs(self) -> list[Run]:
        """Return the runs that may be added here before all comparisons are decided; none for fixed repeats."""
        scenarios = self.experiment.scenarios
        most = {name: scenarios[name].repeats.most for name in open_scenarios(self.experiment)}
        if not most:
            return []
        possible = with_least(self.experiment, most)
        runs = distinct({name: expand_scenario(possible, name) for name in most})
        return [run for name, run in runs.items() if name not in self.runs and _reason(run, self.machine) is None]

    # Priorities of Snakemake's jobs. Of the jobs that could start, Snakemake starts the one with the highest priority.

    @property
    def first_priority(self) -> int:
        """Priority of jobs that come before all runs, such as preparing data."""
        return len(self.runs) + 1

    @cached_property
    def _run_priorities(self) -> dict[str, int]:
        return {run: len(self.runs) - number for number, run in enumerate(self.order)}

    @cached_property
    def _group_priorities(self) -> dict[tuple[str, ...], float]:
        """For each group of scenarios a priority between its last run and the first run of the next group."""
        priorities = {}
        for run, position in self.order.items():
            # The last run of the group overwrites those before it.
            priorities[position.group] = self._run_priorities[run] - 0.5
        return priorities

    def priority_of_run(self, run: str) -> int:
        """Return the priority of a run: runs start in the planned order."""
        return self._run_priorities[run]

    def priority_of_scenario(self, scenario: str) -> float:
        """Return the priority of measuring and drawing a scenario, which comes after the last run of its group.

        It does not come between two runs of the group, because the machine would cool down before the second run, or be
        busy with something else. It comes before the next group of scenarios.
        """
        return self._group_priorities[self.group_of(scenario)]

    def priority_of_trace(self, run: str) -> float:
        """Return the priority of reading a run's trace: after the last run of the group in which the run starts."""
        return self._group_priorities[self.order[run].group]

    def summary(self, scenario: str) -> str:
        """Return one sentence about the runs of a scenario."""
        lost = len(self.not_runnable(scenario))
        count = counted(len(self.scenarios[scenario]) - lost, "run")
        sentence = f"{count}, {self.experiment.scenarios[scenario].repeats.least} of each configuration"
        if not lost:
            return sentence
        where = "the cluster's nodes" if self.experiment.cluster else "this machine"
        return f"{sentence}; {lost} more could not run on {where}"


def _reason(run: Run, machine: Machine) -> str | None:
    """Return why a run cannot run on a machine; None if it can."""
    return run.unsupported_reason(machine) or run.data_error(_data_folder(run))


def _input_folders(run: Run) -> dict[str, str]:
    """Return the folders in which the inputs of a run are prepared, by the parameter that names the input."""
    folders = {}
    for parameter, definition in run.inputs.items():
        name = folder_name(getattr(run.parameters, parameter), definition)
        folders[parameter] = f"{INPUT_FOLDERS[parameter]}/{name}"
    return folders


def _data_folder(run: Run) -> Path | None:
    """Return the folder of a run's prepared data set; None if the run has no data set."""
    folder = _input_folders(run).get("dataset")
    return Path(folder) if folder else None


def _has_record(folder: Path, run: Run) -> bool:
    """Return True if a run directory is complete and its record has the parameters of `run`."""
    if not all((folder / name).exists() for name in (RUN, STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")):
        return False
    try:
        return read_run(folder).parameters == run.parameters
    except UserError:
        return False

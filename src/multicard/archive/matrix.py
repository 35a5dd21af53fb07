"""An experiment's runs, and which of them can be had on the machine or cluster that they are planned for."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from multicard.core.files import read_json
from multicard.core.layout import CAPTURED, EPOCHS, RUN, STEPS, TRACE
from multicard.core.prepared import PROVENANCE, folder_name
from multicard.core.text import counted
from multicard.experiment.cluster import machine_for
from multicard.experiment.config import Experiment
from multicard.experiment.machine import Machine
from multicard.experiment.order import Place, planned_order
from multicard.experiment.runs import Run, distinct, expand
from multicard.experiment.workload import WORKLOADS, parameters_of

# Of each input of a run: what it is called as an input of the run's job, and where it is prepared.
FOLDERS = {"dataset": ("data", "data"), "model": ("model", "data/models")}


@dataclass(frozen=True)
class Matrix:
    """All runs of an experiment."""

    experiment: Experiment
    scenarios: dict[str, list[Run]]  # runs of each, in order; scenarios may share runs
    runs: dict[str, Run]  # each once, by its id
    machine: Machine  # what the runs are planned for: this machine, or a node of the cluster
    reasons: dict[str, str | None]  # why a run cannot be had, by its id; None where it can
    measured: frozenset[str] = frozenset()  # cannot run here, but the results are here: they were measured elsewhere

    @classmethod
    def plan(cls, experiment: Experiment) -> "Matrix":
        """Expand an experiment, and plan it for the cluster that it states, else for this machine."""
        scenarios = expand(experiment)
        runs, machine = distinct(scenarios), machine_for(experiment.cluster)
        reasons = {
            name: run.unsupported_reason(machine) or run.data_error(_data_folder(run)) for name, run in runs.items()
        }
        results = Path(experiment.results) / "runs"
        measured = frozenset(run for run, why in reasons.items() if why and _has_record(results / run, runs[run]))
        return cls(experiment, scenarios, runs, machine, reasons | dict.fromkeys(measured), measured)

    def runnable(self, scenario: str | None = None) -> list[str]:
        """Ids of the runs that can be had, of one scenario or of all."""
        runs = self.runs if scenario is None else [run.id for run in self.scenarios[scenario]]
        return [run for run in runs if self.reasons[run] is None]

    def not_runnable(self, scenario: str | None = None) -> dict[str, str]:
        """Reasons by id of the runs that cannot be had, of one scenario or of all."""
        runs = self.runs if scenario is None else [run.id for run in self.scenarios[scenario]]
        return {run: reason for run in runs if (reason := self.reasons[run]) is not None}

    def prepared(self, run: str) -> dict[str, str]:
        """What a run is made of: `data` and, if it tunes one, `model`, each by the provenance file of its folder."""
        return {FOLDERS[kind][0]: f"{folder}/{PROVENANCE}" for kind, folder in _folders(self.runs[run]).items()}

    def undecided_data(self) -> list[str]:
        """Provenance files that are not there of data sets whose number of samples may decide that runs cannot run."""
        undecided = set()
        for run in map(self.runs.get, self.planned()):
            folder = _data_folder(run)
            if folder is None or (Path(self.experiment.results) / "runs" / run.id / RUN).exists():
                continue
            is_known = WORKLOADS[run.parameters.workload].sample_count(run.inputs["dataset"]) is not None
            if not is_known and not (folder / PROVENANCE).exists():
                undecided.add(str(folder / PROVENANCE))
        return sorted(undecided)

    def all_prepared(self) -> list[str]:
        """Provenance files of all data sets and models that are needed, but for runs measured elsewhere."""
        needed = self.runs.keys() - self.measured
        return sorted({file for run in needed for file in self.prepared(run).values()})

    def plans(self) -> dict[str, dict[str, Any]]:
        """Question and drawn figures of every scenario."""
        drawn = self.figures()
        return {
            name: {"question": scenario.question, "figures": drawn.get(name, [])}
            for name, scenario in self.experiment.scenarios.items()
        }

    def figures(self) -> dict[str, list[str]]:
        """Names of the figures of every scenario that has a run to show."""
        return {
            name: list(scenario.figures) for name, scenario in self.experiment.scenarios.items() if self.runnable(name)
        }

    @cached_property
    def order(self) -> dict[str, Place]:
        """Places of all runs by id, in the order in which they are to start."""
        return planned_order(self.scenarios, self.experiment.order_seed)

    def planned(self) -> list[str]:
        """Ids of the runs that are to run here, in the order in which they are to start."""
        return [run for run in self.order if self.reasons[run] is None and run not in self.measured]

    @property
    def first_priority(self) -> int:
        """Priority of what goes before all runs, such as preparing data."""
        return len(self.runs) + 1

    @cached_property
    def _of_runs(self) -> dict[str, int]:
        return {run: len(self.runs) - number for number, run in enumerate(self.order)}

    @cached_property
    def _after_groups(self) -> dict[tuple[str, ...], float]:
        return {place.group: self._of_runs[run] - 0.5 for run, place in self.order.items()}  # the last run's stays

    def priority_of_run(self, run: str) -> int:
        """Priority of a run: runs start in the planned order."""
        return self._of_runs[run]

    def priority_of_scenario(self, scenario: str) -> float:
        """Priority of measuring and drawing a scenario: after the last run of its group, before the next one's first.

        Between two runs of the group the machine would cool down, or be busy with something else.
        """
        return self._after_groups[self.order[self.scenarios[scenario][0].id].group]

    def priority_of_trace(self, run: str) -> float:
        """Priority of reading a run's trace: that of the scenarios that it runs with."""
        return self._after_groups[self.order[run].group]

    def summary(self, scenario: str) -> str:
        """One sentence about the runs of a scenario."""
        runs, lost = self.scenarios[scenario], len(self.not_runnable(scenario))
        ran = f"{counted(len(runs) - lost, 'run')}, {self.experiment.scenarios[scenario].repeats} of each configuration"
        where = "the cluster's nodes" if self.experiment.cluster else "this machine"
        return f"{ran}; {lost} more could not run on {where}" if lost else ran


def _folders(run: Run) -> dict[str, str]:
    """Folders in which the inputs of a run are prepared, by the parameter that names each."""
    named = {kind: folder_name(getattr(run.parameters, kind), definition) for kind, definition in run.inputs.items()}
    return {kind: f"{FOLDERS[kind][1]}/{name}" for kind, name in named.items()}


def _data_folder(run: Run) -> Path | None:
    """Folder of a run's data set; None where it has none."""
    folder = _folders(run).get("dataset")
    return Path(folder) if folder else None


def _has_record(folder: Path, run: Run) -> bool:
    """Whether a run directory holds all that the run leaves, with these parameters, wherever it was measured."""
    if not all((folder / name).exists() for name in (RUN, STEPS, EPOCHS, f"{TRACE}/{CAPTURED}")):
        return False
    try:
        return parameters_of(read_json(folder / RUN)["parameters"]) == run.parameters
    except (OSError, ValueError, KeyError, TypeError):
        return False

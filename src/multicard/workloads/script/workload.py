"""The workload `script`: training scripts of the user."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from multicard.core.job_file import ObservedJob, read_job
from multicard.core.rendezvous import Rendezvous
from multicard.core.text import without_names
from multicard.core.values import Row
from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Launching, Resources, Unit, Workload, batch_and_own
from multicard.runs.record import RunRecord
from multicard.workloads.script import start
from multicard.workloads.script.launchers import LAUNCHERS
from multicard.workloads.script.outcome import judge_script
from multicard.workloads.script.parameters import ScriptParameters

# Megabytes of host memory that a rank of a script is assumed to need, in addition to those of its process, by device.
RANK_MB = {"cpu": 2000, "cuda": 8000}


class Script(Workload):
    """A training script of the user, which runs unchanged."""

    name = "script"
    parameters = ScriptParameters
    inputs: ClassVar[Mapping[str, type]] = MappingProxyType({})
    method, methods = "launcher", LAUNCHERS
    unit = Unit("sample", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    step_columns = ("tokens",)
    default_label = "command"
    is_user_program = True
    refusal = staticmethod(start.refusal)
    environment = staticmethod(start.environment)
    judge = staticmethod(judge_script)

    def config_error(self, p: ScriptParameters, inputs: Inputs) -> str | None:
        """Return which parameter holds what looks like a secret; None if none does."""
        return start.secret_stated(p)

    def unsupported_reason(self, p: ScriptParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Return why the launcher cannot start the run on any machine; None if it can."""
        return LAUNCHERS[p.launched_by].unsupported_reason(p)

    def command(self, p: ScriptParameters, job: Path, rendezvous: Rendezvous | None) -> list[str]:
        """Return the launcher's command."""
        # `keep` is the folder that `{run_dir}` names.
        return start.start_command(p, str(read_job(job).saved), rendezvous)

    def launching(self, p: ScriptParameters) -> Launching:
        """Return how the ranks of `p` are started, by its parameters and by its launcher."""
        launcher = LAUNCHERS[p.launched_by]
        return Launching(
            interpreter=start.interpreter(p),
            folder=Path(p.folder),
            script=start.script_file(p),
            passed_variables=tuple(p.environment),
            withheld_variables=launcher.withheld,
            tasks_per_node=launcher.tasks_per_node(p),
            hidden_from_profilers=launcher.hidden_from_profilers,
        )

    def observed(self, p: ScriptParameters) -> ObservedJob:
        """Return the entries of every workload, and those that the user states about steps and samples.

        By the words in `program` the observer recognizes a process that runs the script.
        """
        return replace(
            super().observed(p),
            measured_steps=p.steps,
            count_operations=p.count_operations,
            program=tuple(Path(word).name for word in p.command),
        )

    def resources(self, p: ScriptParameters, inputs: Inputs) -> Resources:
        """Return a rough estimate of memory. If it is too low, Slurm gives a second attempt more."""
        return Resources(RANK_MB[p.device])

    def counted(self, record: RunRecord, steps: Any) -> Any:
        """Return the rows of steps.csv with the number of samples that the user states for a step, if any.

        Each rank gets an equal part of it, which may be a fraction.
        """
        assert isinstance(record.parameters, ScriptParameters)
        stated = record.parameters.stated_samples
        if stated is None:
            return steps
        return steps.assign(samples=stated / steps["rank"].nunique())

    def distinct_share(self, record: RunRecord) -> float:
        """Return distinct samples divided by processed samples; 1 if unknown, or if the user states the samples."""
        return self._measures_module().distinct_share(record) or 1.0

    def baseline_words(self, method: str) -> str:
        """Return "1 device", without the launcher: with one device there is nothing to choose between launchers."""
        return "1 device"

    def learning(self, values: Mapping[str, Any]) -> Row:
        """Return the measured batch size and all of the script's own parameters, since any may affect learning."""
        return batch_and_own(self, values)

    def job(self, values: Mapping[str, Any]) -> str:
        """Return the command with … in place of each name in braces, because values differ from run to run."""
        return without_names(str(values["command"]))


def default_figures(several_counts: bool, device: str, ablates: bool = False) -> tuple[str, ...]:
    """Return the names of the figures that a scenario of a script gets by default.

    Parameters
    ----------
    several_counts
        True if the number of devices varies.
    device
        cpu or cuda.
    ablates
        True if there are runs without a part of their step.
    """
    figures: list[str] = []
    if several_counts:
        figures += ["iteration_time", "speedup", "tradeoff"]
    if ablates:
        figures.append("ablation")
    figures += ["step_breakdown", "utilization", "step_times"]
    if device == "cuda":
        figures += ["device_time", "time_shares", "kernel_classes", "collectives"]
    figures.append("memory")
    return tuple(figures)


WORKLOAD = Script()

"""The entry of the user's own training scripts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from multicard.core.files import read_json
from multicard.core.layout import PHASES
from multicard.core.rendezvous import Rendezvous
from multicard.core.text import without_names
from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Launching, Resources, Unit, Workload, batch_and_own
from multicard.workloads.script import start
from multicard.workloads.script.launchers import LAUNCHERS
from multicard.workloads.script.outcome import judge_script
from multicard.workloads.script.parameters import ScriptParameters

# Assumed of a rank's memory on the host, beside its process: what a script keeps there is not known.
RANK_MB = {"cpu": 2000, "cuda": 8000}


class Script(Workload):
    """A training script of the user, run as it is."""

    name = "script"
    parameters = ScriptParameters
    inputs: ClassVar[Inputs] = {}
    method, methods = "launcher", LAUNCHERS
    unit = Unit("sample", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    step_columns = ("tokens",)
    default_label = "command"
    is_user_program = True
    refusal = staticmethod(start.refusal)
    environment = staticmethod(start.environment)
    judge = staticmethod(judge_script)

    def config_error(self, p: ScriptParameters, inputs: Inputs) -> str | None:
        """Refuse what looks like a secret."""
        return start.secret_stated(p)

    def unsupported_reason(self, p: ScriptParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Ask the launcher."""
        return LAUNCHERS[p.launched_by].unsupported_reason(p)

    def command(self, p: ScriptParameters, job: Path, rendezvous: Rendezvous | None) -> list[str]:
        """Ask the launcher."""
        return start.start_command(p, read_json(job)["keep"], rendezvous)

    def launching(self, p: ScriptParameters) -> Launching:
        """As stated, and as the launcher has it."""
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

    def observed(self, p: ScriptParameters) -> dict[str, Any]:
        """Devices and windows."""
        return super().observed(p) | {
            "measured_steps": p.steps,
            "samples_per_step": p.stated_samples,
            "count_operations": p.count_operations,
            "program": [Path(word).name for word in p.command],
        }

    def resources(self, p: ScriptParameters, inputs: Inputs) -> Resources:
        """A guess; Slurm gives a second attempt more."""
        return Resources(RANK_MB[p.device])

    def counted(self, record: Mapping[str, Any], steps: Any) -> Any:
        """A step without a phase that others have spent no time in it; a stated number of samples is shared equally."""
        known = [f"{name}_s" for name in PHASES if steps[f"{name}_s"].notna().any()]
        steps = steps.assign(**{name: steps[name].fillna(0.0) for name in known})
        stated = ScriptParameters.model_validate(record["parameters"]).stated_samples
        return steps if stated is None else steps.assign(samples=stated / steps["rank"].nunique())

    def distinct_share(self, record: Mapping[str, Any]) -> float:
        """Ranks whose loaders draw the same samples repeat one another; the stated number counts distinct ones."""
        return self._measures_module().distinct_share(record) or 1.0

    def baseline_words(self, method: str) -> str:
        """One device: how the script is started there is no choice."""
        return "1 device"

    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Any parameter of its own may matter."""
        return batch_and_own(self, values)

    def job(self, values: Mapping[str, Any]) -> str:
        """Same command."""
        return without_names(str(values["command"]))


def default_figures(several_counts: bool, device: str, ablates: bool = False) -> tuple[str, ...]:
    """Names of the figures that show what matters of a script.

    Parameters
    ----------
    several_counts
        Whether the number of devices varies.
    device
        cpu or cuda.
    ablates
        Whether there are runs without a part of their step.
    """
    over_devices = ("iteration_time", "speedup", "tradeoff") if several_counts else ()
    of_gpus = ("device_time", "time_shares", "kernel_classes", "collectives") if device == "cuda" else ()
    return (
        *over_devices,
        *(("ablation",) if ablates else ()),
        "step_breakdown",
        "utilization",
        "step_times",
        *of_gpus,
        "memory",
    )


WORKLOAD = Script()

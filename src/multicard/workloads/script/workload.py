"""The entry of the user's own training scripts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Unit, Workload
from multicard.workloads.script.launcher import LAUNCHERS
from multicard.workloads.script.parameters import ScriptParameters

# Assumed of a rank's memory on the host: what a script keeps there is not known.
RANK_MB = 8000


class Script(Workload):
    """A training script of the user, run as it is."""

    name, order = "script", 30
    parameters = ScriptParameters
    inputs: ClassVar[Inputs] = {}
    method, methods = "launcher", LAUNCHERS
    unit = Unit("sample", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    assumption = "a script's own time is not known"

    def unsupported_reason(self, p: ScriptParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Ask the launcher."""
        return LAUNCHERS[p.launched_by].unsupported_reason(p)

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare nothing: a script has no inputs."""
        raise NotImplementedError

    def rank_memory_mb(self, p: ScriptParameters, inputs: Inputs) -> float:
        """A guess; Slurm gives a second attempt more."""
        return RANK_MB

    def durations_s(self, p: ScriptParameters, inputs: Inputs) -> None:
        """Not known: it depends on the script."""

    @property
    def measures(self) -> Mapping[str, str]:
        """Steps, where samples are not known."""
        from multicard.workloads.script.measures import MEASURES

        return MEASURES

    def measure(self, record: Mapping[str, Any], common: Mapping[str, Any], steps: Any, epochs: Any) -> dict[str, Any]:
        """Steps, where samples are not known."""
        from multicard.workloads.script.measures import measure

        return measure(common)

    def job(self, values: Mapping[str, Any]) -> str:
        """Same command."""
        return str(values["command"])


WORKLOAD = Script()

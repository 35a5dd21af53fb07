"""The launchers, a module each; `multicard.workloads.script.launcher` has the interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.workloads.script.launcher import Launcher
from multicard.workloads.script.launchers import accelerate, command, deepspeed, mpirun, python, srun, torchrun

LAUNCHERS: Mapping[str, Launcher] = by_name(
    python.LAUNCHER,
    torchrun.LAUNCHER,
    accelerate.LAUNCHER,
    deepspeed.LAUNCHER,
    srun.LAUNCHER,
    mpirun.LAUNCHER,
    command.LAUNCHER,
)

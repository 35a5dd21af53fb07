"""The launchers, a module each; `multicard.launchers.interface` has their interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.launchers import accelerate, command, deepspeed, mpirun, python, srun, torchrun, traces
from multicard.launchers.interface import Launcher

LAUNCHERS: Mapping[str, Launcher] = by_name(
    python.LAUNCHER,
    torchrun.LAUNCHER,
    accelerate.LAUNCHER,
    deepspeed.LAUNCHER,
    srun.LAUNCHER,
    mpirun.LAUNCHER,
    command.LAUNCHER,
    traces.LAUNCHER,
)

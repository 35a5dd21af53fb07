"""DeepSpeed's launcher."""

import os
from typing import Any

from multicard.core.rendezvous import Rendezvous, free_port
from multicard.launchers.interface import Launcher


class DeepSpeed(Launcher):
    """Starts a process for each device, and gives each the argument `--local_rank`."""

    name = "deepspeed"
    description = "`deepspeed` starts a process for each device."
    package = "deepspeed"
    programs, modules = ("deepspeed",), ("deepspeed.launcher.runner",)
    several_nodes = False  # for several, it asks for a file that lists the hosts
    notes = ("It adds `--local_rank=N` to the script's arguments.",)

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script under deepspeed."""
        options = [_gpus(p), "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
        if arguments[0] == "-m":
            options.append("--module")
            arguments = arguments[1:]
        return [python, "-m", self.modules[0], *options, *arguments]


def _gpus(p: Any) -> str:
    """Return the option by which DeepSpeed uses the visible GPUs.

    If CUDA_VISIBLE_DEVICES is set, they are named: given only a number, DeepSpeed would use the machine's first GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if p.device != "cuda" or not visible:
        return f"--num_gpus={p.ranks}"
    gpus = [gpu.strip() for gpu in visible.split(",")[: p.ranks]]
    return f"--include=localhost:{','.join(gpus)}"


LAUNCHER = DeepSpeed()

"""DeepSpeed's launcher."""

import os
from typing import Any

from multicard.core.rendezvous import Rendezvous, free_port
from multicard.workloads.script.launcher import Launcher

VISIBLE = "CUDA_VISIBLE_DEVICES"


class DeepSpeed(Launcher):
    """Starts a process for each device, and gives each the argument `--local_rank`."""

    name = "deepspeed"
    description = "`deepspeed` starts a process for each device."
    package = "deepspeed"
    programs, modules = ("deepspeed",), ("deepspeed.launcher.runner",)
    several_nodes = False  # it asks for a file of hosts
    notes = ("It adds `--local_rank=N` to the script's arguments.",)

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script under deepspeed."""
        module = ["--module"] if arguments[0] == "-m" else []
        visible = os.environ.get(VISIBLE, "").split(",")[: p.ranks]
        # Told a number of GPUs, it takes the first of the machine, whichever ones are visible.
        gpus = f"--num_gpus={p.ranks}"
        if p.device == "cuda" and visible != [""]:
            gpus = f"--include=localhost:{','.join(each.strip() for each in visible)}"
        options = [gpus, "--master_addr=127.0.0.1", f"--master_port={free_port()}", *module]
        return [python, "-m", self.modules[0], *options, *arguments[len(module) :]]


LAUNCHER = DeepSpeed()

"""Hugging Face Accelerate's launcher."""

from typing import Any

from multicard.core.rendezvous import Rendezvous, free_port
from multicard.launchers.interface import Launcher


class Accelerate(Launcher):
    """Starts a process for each device, by way of torchrun."""

    name = "accelerate"
    description = "`accelerate launch` starts a process for each device."
    package = "accelerate"
    programs, modules = ("accelerate",), ("accelerate.commands.launch",)
    notes = ("Numbers of processes and machines are given; for a configuration file of its own use `command`.",)

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script under `accelerate launch`."""
        options = [f"--num_processes={p.ranks}", f"--num_machines={p.nodes}"]
        if p.ranks > 1:
            # Needed on CPUs, too: without it, Accelerate starts a single process there.
            options.append("--multi_gpu")
        elif p.device == "cpu":
            options.append("--cpu")
        if rendezvous is None:
            # Newer releases take 0 for any free port; Accelerate 1.1 hands it to the ranks, which wait for ever.
            options.append(f"--main_process_port={free_port()}")
        else:
            options += [f"--machine_rank={rendezvous.node}", f"--main_process_ip={rendezvous.address}"]
            options.append(f"--main_process_port={rendezvous.port}")
        return [python, "-m", self.modules[0], *options, *arguments]


LAUNCHER = Accelerate()

"""PyTorch's own launcher."""

from typing import Any

from multicard.core.rendezvous import Rendezvous, torchrun_options
from multicard.launchers.interface import Launcher


class Torchrun(Launcher):
    """Starts a process for each device."""

    name = "torchrun"
    description = "torchrun starts a process for each device."
    programs, modules = ("torchrun",), ("torch.distributed.run", "torch.distributed.launch")

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script under torchrun."""
        options = torchrun_options(p.ranks_per_node, rendezvous)
        if arguments[0] == "-m":
            options.append("-m")
            arguments = arguments[1:]
        # After `--`, torchrun reads no argument of the script as an abbreviation of its own options.
        return [python, "-m", self.modules[0], *options, "--", *arguments]


LAUNCHER = Torchrun()

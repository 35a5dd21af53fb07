"""The interpreter alone."""

from typing import Any

from multicard.core.rendezvous import Rendezvous
from multicard.launchers.interface import Launcher


class Python(Launcher):
    """Starts the script once, as the only rank."""

    name = "python"
    description = (
        "The interpreter runs the script, one process on one device or on several GPUs, as with `nn.DataParallel`."
    )
    several_nodes = False

    def ranks(self, devices: int) -> int:
        """Return 1: a single process computes on all devices."""
        return 1

    def unsupported_reason(self, p: Any) -> str | None:
        """Return why it cannot start a run on any machine; None if it can.

        It cannot start one on several CPU devices, because each CPU device is a process.
        """
        if p.devices > 1 and p.device == "cpu":
            return (
                f"launcher: python starts one process, and on CPUs devices: {p.devices} are as many; use torchrun, or "
                "command for a script that starts its ranks itself"
            )
        return super().unsupported_reason(p)

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script in one process."""
        return [python, *arguments]


LAUNCHER = Python()

"""The interpreter alone."""

from typing import Any

from multicard.core.rendezvous import Rendezvous
from multicard.workloads.script.launcher import Launcher


class Python(Launcher):
    """Starts the script once, as the only rank."""

    name = "python"
    description = (
        "The interpreter runs the script, one process on one device or on several GPUs, as with `nn.DataParallel`."
    )
    several_nodes = False

    def ranks(self, devices: int) -> int:
        """Return 1: the process computes on all devices."""
        return 1

    def unsupported_reason(self, p: Any) -> str | None:
        """Return also why it cannot run on several CPU devices, which are processes."""
        if p.devices > 1 and p.device == "cpu":
            return (
                f"launcher: python starts one process, and on CPUs devices: {p.devices} are as many; use torchrun, or "
                "command for a script that starts its ranks itself"
            )
        return super().unsupported_reason(p)

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script."""
        return [python, *arguments]


LAUNCHER = Python()

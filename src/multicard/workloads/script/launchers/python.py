"""The interpreter alone."""

from typing import Any

from multicard.core.rendezvous import Rendezvous
from multicard.workloads.script.launcher import Launcher


class Python(Launcher):
    """Starts the script once, as the only rank."""

    name, order = "python", 10
    description = "The interpreter runs the script, on one device."
    several_nodes = False

    def unsupported_reason(self, p: Any) -> str | None:
        """Refuse several devices."""
        if p.devices > 1:
            return (
                f"launcher: python starts one rank, and devices is {p.devices}; use torchrun, or command for a script "
                "that starts its ranks itself"
            )
        return None

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script."""
        return [python, *arguments]


LAUNCHER = Python()

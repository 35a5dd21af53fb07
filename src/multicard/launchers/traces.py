"""No launcher: runs that `multicard analyze --as-runs` made from traces."""

from typing import Any

from multicard.core.rendezvous import Rendezvous
from multicard.launchers.interface import Launcher


class Traces(Launcher):
    """Stands for what started the ranks of a program that multicard did not start."""

    name = "traces"
    description = "Nothing is started: the run was made from traces by `multicard analyze --as-runs`."
    launches = False

    def unsupported_reason(self, p: Any) -> str:
        """Return that no trace was adopted for the run. A run with traces has its results already."""
        return "no trace of it was adopted"

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command, which is only the name of the program."""
        return arguments


LAUNCHER = Traces()

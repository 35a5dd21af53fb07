"""No launcher: the command starts its ranks itself."""

from typing import Any

from multicard.core.rendezvous import Rendezvous
from multicard.launchers.interface import Launcher


class Command(Launcher):
    """Starts the command once. The command itself starts the ranks for its devices."""

    name = "command"
    description = (
        "The command is started once and starts its ranks itself, as with `mp.spawn`, Lightning or `tune run`: by the "
        "interpreter where it begins with a file *.py or with `-m`, else as a program."
    )
    several_nodes = False

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the user's command, with the interpreter before it if it begins with a file *.py or `-m`."""
        needs_python = arguments[0] == "-m" or arguments[0].endswith(".py")
        return [python, *arguments] if needs_python else arguments


LAUNCHER = Command()

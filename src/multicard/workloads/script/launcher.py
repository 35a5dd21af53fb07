"""The interface of a launcher; the entries are listed in `multicard.workloads.script.launchers`."""

from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous


class Launcher:
    """A way to start the ranks of a user's script; the value of its parameter `launcher` names one."""

    name: str
    # One sentence for the schema and the documentation, and further ones that a user should read.
    description: str
    notes: tuple[str, ...] = ()
    several_nodes = True  # False if it starts the ranks of one node only
    # Programs that a user may start ranks by, and modules after `python -m`.
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    # Package beside torch that must be installed for the script's interpreter.
    package: str | None = None
    # Pattern of the names of variables that it would read as options, and so does not get.
    withheld: str | None = None
    # Why a profiler that runs it as its child would not see the ranks; their CPU time is not known then either.
    hidden_from_profilers: str | None = None

    def facts(self) -> list[str]:
        """Return further sentences for the documentation."""
        return [*self.notes] if self.several_nodes else ["One node.", *self.notes]

    def ranks(self, devices: int) -> int:
        """Return the number of processes that train on so many devices."""
        return devices

    def unsupported_reason(self, p: Any) -> str | None:
        """Return why it starts no run with these ScriptParameters on any machine; None if it does."""
        if p.nodes > 1 and not self.several_nodes:
            return f"launcher: {self.name} starts the ranks of one node, and nodes is {p.nodes}; use torchrun"
        return None

    def refusal(self, source: Mapping[str, str]) -> str | None:
        """Return why it starts no ranks on this machine; None if it does. `source`: environment variables."""
        return None

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that starts the ranks of this node by the interpreter `python`.

        `arguments`: the script, or `-m` and a module, followed by its arguments; `p`: ScriptParameters; `rendezvous`:
        of a job on several nodes, where this one stands among them.
        """
        raise NotImplementedError

    def tasks_per_node(self, p: Any) -> int:
        """Return how many tasks of Slurm run `command` on each of several nodes: one, or one for each rank."""
        return 1

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return the variables by which ranks find each other, if the launcher does not set them.

        `rendezvous`: see `command`.
        """
        return {}

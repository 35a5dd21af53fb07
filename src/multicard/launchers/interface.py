"""The interface of a launcher; the launchers are listed in `multicard.launchers`."""

from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous


class Launcher:
    """A way to start the ranks of a job."""

    name: str
    # One sentence for the schema and the documentation, and further sentences for the documentation.
    description: str
    notes: tuple[str, ...] = ()
    launches = True  # False if multicard starts no run by it
    several_nodes = True  # False if it starts the ranks of one node only
    # A command that begins with one of these programs, or with `-m` and one of these modules, uses this launcher.
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    # Package that must be installed for the script's interpreter, in addition to torch; None if no other is needed.
    package: str | None = None
    # Environment variables whose whole name matches this pattern are removed, because it would read them as options.
    withheld: str | None = None
    # Why a profiler that starts the launcher would not see the ranks; None if it sees them. If it does not, the CPU
    # time of the ranks is not measured either.
    hidden_from_profilers: str | None = None

    def facts(self) -> list[str]:
        """Return further sentences for the documentation."""
        return [*self.notes] if self.several_nodes else ["One node.", *self.notes]

    def ranks(self, devices: int) -> int:
        """Return the number of processes that train on so many devices."""
        return devices

    def unsupported_reason(self, p: Any) -> str | None:
        """Return why it cannot start a run with the parameters `p` on any machine; None if it can."""
        if p.nodes > 1 and not self.several_nodes:
            return f"launcher: {self.name} starts the ranks of one node, and nodes is {p.nodes}; use torchrun"
        return None

    def refusal(self, source: Mapping[str, str]) -> str | None:
        """Return why it cannot start ranks on this machine; None if it can. `source`: environment variables."""
        return None

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that starts the ranks of this node with the interpreter `python`.

        `arguments`: the script, or `-m` and a module, followed by its arguments; `p`: the parameters; `rendezvous`:
        the index of this node and the address of the first one; None for a job on one node.
        """
        raise NotImplementedError

    def tasks_per_node(self, p: Any) -> int:
        """Return how many Slurm tasks run `command` on each node of a job on several nodes: one, or one per rank."""
        return 1

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return further variables for the ranks, such as the address where they meet if the launcher sets none.

        `rendezvous`: see `command`.
        """
        return {}

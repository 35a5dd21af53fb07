"""The interface of a launcher; the entries are listed in `multicard.workloads.script.launchers`."""

from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous


class Launcher:
    """How the ranks of a user's script are started."""

    name: str
    description: str  # what it does, for the schema and the documentation
    notes: tuple[str, ...] = ()  # what else a user should know
    several_nodes = True  # whether it can start the ranks of each of several nodes
    # What a user who starts the ranks by it types: its program, or `-m` and its module.
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    package: str | None = None  # that the interpreter needs for it, beside torch
    withheld: str | None = None  # pattern of the names of variables that it would take for options
    # Why a profiler that runs it as its child would not see the ranks, nor multicard know their CPU time for the job's.
    hidden_from_profilers: str | None = None

    def facts(self) -> list[str]:
        """Further sentences for the documentation."""
        return [*([] if self.several_nodes else ["One node."]), *self.notes]

    def ranks(self, devices: int) -> int:
        """Processes that train on so many devices."""
        return devices

    def unsupported_reason(self, p: Any) -> str | None:
        """What of a run (ScriptParameters) it cannot start on any machine."""
        if p.nodes > 1 and not self.several_nodes:
            return f"launcher: {self.name} starts the ranks of one node, and nodes is {p.nodes}; use torchrun"
        return None

    def refusal(self, source: Mapping[str, str]) -> str | None:
        """Why it starts no ranks on this machine, given its environment; None where it does."""
        return None

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Command that starts the ranks of this node by the interpreter `python`.

        `arguments`: a script, or `-m` and a module, and its own; `rendezvous`: of a job on several nodes, which one.
        """
        raise NotImplementedError

    def tasks_per_node(self, p: Any) -> int:
        """Tasks of Slurm that start the ranks of a node of several, by `command`: one, or one for each rank."""
        return 1

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Variables that its ranks need to find each other, where they take them from nowhere else.

        `rendezvous`: as of `command`.
        """
        return {}

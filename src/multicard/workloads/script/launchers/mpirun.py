"""The launcher of an MPI."""

from typing import Any

from multicard.core.rendezvous import Rendezvous, free_port
from multicard.workloads.script.launcher import Launcher


class Mpirun(Launcher):
    """Starts a process for each device, which finds its number in the variables of the MPI."""

    name, order = "mpirun", 60
    description = "`mpirun` starts a process for each device."
    several_nodes = False
    variables = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script under mpirun, by the option that Open MPI, MPICH and Intel MPI share."""
        return ["mpirun", "-n", str(p.ranks), python, *arguments]

    def environment(self) -> dict[str, str]:
        """Where `env://` looks for the first rank."""
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


LAUNCHER = Mpirun()

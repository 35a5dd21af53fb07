"""The launcher of an MPI."""

from typing import Any

from multicard.core.rendezvous import Rendezvous, env_variables
from multicard.workloads.script.launcher import Launcher


class Mpirun(Launcher):
    """Starts a process for each device, which finds its number in the variables of the MPI."""

    name = "mpirun"
    description = "`mpirun` starts a process for each device."
    programs = ("mpirun", "mpiexec")
    several_nodes = False
    # With Slurm's variables it would place ranks on all nodes of the job.
    withheld = r"SLURM_.*"
    notes = (
        "Open MPI binds no rank to a core, and starts more ranks than there are cores. For options of your own use "
        "`command`, with `mpirun` as the first word.",
    )

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script under mpirun, by the option that Open MPI, MPICH and Intel MPI share."""
        return ["mpirun", "-n", str(p.ranks), python, *arguments]

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return the variables by which `env://` finds the first rank, and by which Open MPI places ranks.

        By default it binds each of two ranks to one core, with all of its threads and loader workers, and refuses more
        ranks than there are cores. Version 4 and before it read the first two names, version 5 the others.
        """
        return {
            **env_variables(),
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }


LAUNCHER = Mpirun()

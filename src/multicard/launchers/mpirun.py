"""The launcher of MPI: Open MPI, MPICH or Intel MPI."""

from typing import Any

from multicard.core.rendezvous import Rendezvous, env_variables
from multicard.launchers.interface import Launcher


class Mpirun(Launcher):
    """Starts a process for each device. The process finds its rank in the variables that MPI sets."""

    name = "mpirun"
    description = "`mpirun` starts a process for each device."
    programs = ("mpirun", "mpiexec")
    several_nodes = False
    # If it saw Slurm's variables, it would place ranks on all nodes of the Slurm job.
    withheld = r"SLURM_.*"
    notes = (
        "Open MPI binds no rank to a core, and starts more ranks than there are cores. For options of your own use "
        "`command`, with `mpirun` as the first word.",
    )

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script under mpirun; Open MPI, MPICH and Intel MPI share the option -n."""
        return ["mpirun", "-n", str(p.ranks), python, *arguments]

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return the address of the first rank, for PyTorch's `env://`, and settings of Open MPI.

        Without the settings Open MPI would bind each of two ranks to a single core, with all its threads and loader
        workers, and would refuse to start more ranks than there are cores. Open MPI 4 and older versions read the
        names OMPI_…, version 5 reads the names PRTE_….
        """
        return {
            **env_variables(),
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }


LAUNCHER = Mpirun()

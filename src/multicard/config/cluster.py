"""The hardware of a cluster's nodes. A configuration states it, because the planning machine has other hardware."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from multicard.profilers import PROFILERS
from multicard.programs.datasets import Strict
from multicard.programs.machine import Machine

# Not strict, because numbers from a profile of Snakemake arrive as text.
Count = Annotated[int, Field(strict=False)]


class Cluster(Strict):
    """Nodes that are alike."""

    nodes: Count = Field(default=1, ge=1, description="Maximum number of nodes per run.")
    cpus_per_node: Count = Field(ge=1, description="CPUs per node that jobs may use.")
    gpus_per_node: Count = Field(default=0, ge=0, description="GPUs per node.")
    gpu_memory_gb: float | None = Field(default=None, gt=0, strict=False, description="Memory per GPU, in 10^9 bytes.")
    memory_per_node_gb: float | None = Field(
        default=None,
        gt=0,
        strict=False,
        description="Memory per node that jobs may use, in thousands of Slurm's MB: no job requests more.",
    )


def machine_for(cluster: Cluster | None) -> Machine:
    """Return the machine that runs are planned for: a node of the cluster, or this machine if `cluster` is None.

    A node has the stated hardware, and the Python packages of this machine, because they are shared. Profilers and a
    compiler are assumed to be installed on it. If one is missing, a run that needs it fails and names it as the reason.
    """
    here = Machine.here()
    if cluster is None:
        return here
    memory = cluster.gpu_memory_gb
    return replace(
        here,
        cpus=cluster.cpus_per_node,
        gpus=cluster.gpus_per_node,
        gpu_memory_bytes=None if memory is None else int(memory * 1e9),
        profilers=tuple(PROFILERS),
        compiler=True,
        nodes=cluster.nodes,
        runs_ask_for_cpus=True,
        hidden_gpus=None,
    )

"""What the nodes of a cluster offer, stated where jobs are sent there: the machine that plans has other hardware."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from multicard.core.errors import UserError
from multicard.experiment.datasets import Strict
from multicard.experiment.machine import Machine
from multicard.profilers import PROFILERS

# A profile of Snakemake hands its numbers over as text.
Count = Annotated[int, Field(strict=False)]


class Cluster(Strict):
    """Nodes that are alike."""

    nodes: Annotated[Count, Field(ge=1, description="Nodes that one run may have.")] = 1
    cpus_per_node: Annotated[Count, Field(ge=1, description="CPUs of a node that jobs may use.")]
    gpus_per_node: Annotated[Count, Field(ge=0, description="Cards of a node.")] = 0
    gpu_memory_gb: Annotated[
        float | None, Field(gt=0, strict=False, description="Memory of a card, in 10^9 bytes.")
    ] = None
    memory_per_node_gb: Annotated[
        float | None,
        Field(
            gt=0,
            strict=False,
            description="Memory of a node that jobs may use, in 1000 of Slurm's MB: a job that was lost and is "
            "submitted again, with more memory, asks for no more than this.",
        ),
    ] = None


def machine_for(cluster: Cluster | None) -> Machine:
    """What a run meets: this machine, or a node of the cluster.

    A node has the stated hardware and the Python packages of this machine, which it shares. Programs are taken to be
    there: a profiler, a compiler. A run on a node that lacks them says so.
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
    )


def check_names(paths: Iterable[Path]) -> None:
    """Refuse paths that Snakemake would hand to a job wrongly: it writes them as Python does, and a shell reads that.

    Raises
    ------
    UserError
        If one holds an apostrophe, a backslash or what cannot be printed.
    """
    for path in paths:
        name = str(path.absolute())
        if repr(name) != f"'{name}'":
            raise UserError(
                f"{name!a}: Snakemake cannot hand this path to a job on a cluster: expected one without "
                "apostrophes, backslashes and line breaks"
            )

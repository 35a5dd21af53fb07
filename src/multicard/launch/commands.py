"""Command lines of a training job."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """One of the nodes that a job runs on, and where the first of them listens."""

    node: int
    nodes: int
    address: str
    port: int


def training_command(
    module: str, arguments: list[str], ranks: int, distributed: bool, rendezvous: Rendezvous | None = None
) -> list[str]:
    """Command that runs a module in one process, or under torchrun in `ranks` processes of this machine.

    `rendezvous`: which of several nodes this machine is; its ranks follow those of the nodes before it.
    """
    if not distributed:
        return [sys.executable, "-m", module, *arguments]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    if rendezvous is None:
        # A free port, so that jobs on one machine never meet.
        torchrun += ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    else:
        torchrun += [f"--nnodes={rendezvous.nodes}", f"--node-rank={rendezvous.node}"]
        torchrun += [f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"]
    return [*torchrun, "-m", module, *arguments]

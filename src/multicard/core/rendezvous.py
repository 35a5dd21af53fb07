"""Where the ranks of a job meet, and what torchrun is told of it."""

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """One of the nodes that a job runs on, and where the first of them listens."""

    node: int
    nodes: int
    address: str
    port: int


def torchrun_options(ranks: int, rendezvous: Rendezvous | None = None) -> list[str]:
    """Options of torchrun for `ranks` processes of this machine.

    `rendezvous`: which of several nodes this machine is; its ranks follow those of the nodes before it.
    """
    options = [f"--nproc-per-node={ranks}"]
    if rendezvous is None:
        # A free port, so that jobs on one machine never meet.
        return [*options, "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    options += [f"--nnodes={rendezvous.nodes}", f"--node-rank={rendezvous.node}"]
    return [*options, f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"]


def env_variables(rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Variables by which ranks that no torchrun starts find each other: PyTorch's `env://`.

    `rendezvous`: of a job on several nodes; else all ranks are on this machine.
    """
    if rendezvous is None:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"MASTER_ADDR": rendezvous.address, "MASTER_PORT": str(rendezvous.port)}


def free_port() -> int:
    """Find a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

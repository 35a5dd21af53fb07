"""The address at which the ranks of a job find each other, as options of torchrun or as environment variables."""

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """One of the nodes that a job runs on, and the address of the first of them, where the ranks meet."""

    node: int  # index of this node, from 0
    nodes: int
    address: str
    port: int


def torchrun_options(ranks: int, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return options of torchrun for `ranks` processes of this machine.

    `rendezvous`: which of several nodes this machine is, whose ranks follow those of the nodes before it; None for a
    job on this machine alone.
    """
    options = [f"--nproc-per-node={ranks}"]
    if rendezvous is None:
        # A free port, so that jobs on one machine never meet.
        return [*options, "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    options += [f"--nnodes={rendezvous.nodes}", f"--node-rank={rendezvous.node}"]
    return [*options, f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"]


def env_variables(rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Return the variables by which ranks find each other that no torchrun starts: PyTorch's `env://`.

    `rendezvous`: which of several nodes this machine is; None for a job on this machine alone.
    """
    if rendezvous is None:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"MASTER_ADDR": rendezvous.address, "MASTER_PORT": str(rendezvous.port)}


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

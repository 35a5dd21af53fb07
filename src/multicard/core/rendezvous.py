"""The address at which the ranks of a job connect to each other, as options of torchrun or environment variables."""

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """The place of this node among the nodes of a job, and the address on the first node where the ranks connect."""

    node: int  # index of this node, from 0
    nodes: int  # number of nodes
    address: str  # of the first node
    port: int  # of the first node


def torchrun_options(ranks: int, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return options of torchrun for `ranks` processes of this machine.

    `rendezvous`: the place of this machine among several nodes; None for a job on this machine alone. torchrun numbers
    the ranks in the order of the nodes.
    """
    options = [f"--nproc-per-node={ranks}"]
    if rendezvous is None:
        # With port 0, torchrun takes a free port, so that the ranks of two jobs on a machine never connect.
        return [*options, "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    options += [f"--nnodes={rendezvous.nodes}", f"--node-rank={rendezvous.node}"]
    return [*options, f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"]


def env_variables(rendezvous: Rendezvous | None = None) -> dict[str, str]:
    """Return the variables by which ranks connect to each other (PyTorch's `env://`) if torchrun does not start them.

    `rendezvous`: the place of this machine among several nodes; None for a job on this machine alone.
    """
    if rendezvous is None:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"MASTER_ADDR": rendezvous.address, "MASTER_PORT": str(rendezvous.port)}


def free_port() -> int:
    """Return a port of this machine that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

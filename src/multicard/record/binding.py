"""Bind a rank to the CPUs of the NUMA node closest to its GPU; without GPUs, divide the nodes evenly.

Linux takes the memory of a process from the node that it runs on. torchrun's `--numa-binding` is not used: it starts no
process where there is no GPU, no `numactl` program or no /sys entry, treats a GPU of unknown node (`numa_node` -1) as
one of node 0, and would put the one-process strategies under a launcher too.
"""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from multicard.record import visible

SYSFS = Path("/sys")

NOTES: list[str] = []  # of this process


class NotBound(Exception):
    """There is nothing to bind a rank to; the message is the reason."""


@dataclass(frozen=True)
class Topology:
    """NUMA nodes and cores of a machine.

    Attributes
    ----------
    nodes
        CPUs of each node; none for a node of memory alone.
    cores
        For a CPU all CPUs (hardware threads) of its core; a CPU that is missing is a core of its own.
    """

    nodes: Mapping[int, frozenset[int]]
    cores: Mapping[int, frozenset[int]]


def read_topology(sysfs: Path = SYSFS) -> Topology:
    """Read the nodes and cores that Linux shows; without /sys there are none."""
    nodes, cores = {}, {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        cpus = _read(folder / "cpulist")
        if cpus is not None:
            nodes[int(folder.name.removeprefix("node"))] = parse_cpus(cpus)
    for cpu in frozenset().union(*nodes.values()):
        siblings = _read(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        if siblings is not None:
            cores[cpu] = parse_cpus(siblings)
    return Topology(dict(sorted(nodes.items())), cores)


def node_of_gpu(address: str, sysfs: Path = SYSFS) -> int | None:
    """NUMA node of a PCI device; None where the machine reports none (-1)."""
    node = _read(sysfs / f"bus/pci/devices/{address}/numa_node")
    return None if node is None or int(node) < 0 else int(node)


def closest_to_gpus(topology: Topology, usable: frozenset[int], gpus: Mapping[str, int | None]) -> dict[int, set[int]]:
    """Usable CPUs of the nodes closest to the GPUs of one rank, by node.

    Ranks whose GPUs are at one node share all its CPUs, as with torchrun's `--numa-binding=node`.

    Parameters
    ----------
    gpus
        Node of each GPU, by its PCI address.

    Raises
    ------
    NotBound
        If a GPU's node is unknown, or has no CPU that this process may use.
    """
    _refuse_one_node(topology)
    cpus_of: dict[int, set[int]] = {}
    for address, node in gpus.items():
        if node is None:
            raise NotBound(f"the NUMA node of the GPU at {address} is unknown")
        cpus_of[node] = set(topology.nodes.get(node, frozenset()) & usable)
        if not cpus_of[node]:
            raise NotBound(f"no usable CPU at NUMA node {node} of the GPU at {address}")
    return dict(sorted(cpus_of.items()))


def share_of_rank(topology: Topology, usable: frozenset[int], rank: int, ranks: int) -> dict[int, set[int]]:
    """Usable CPUs of one of `ranks` processes, by node: neighbours share a node and divide its cores evenly.

    Rank i of n gets the node i * nodes // n, of the nodes with usable CPUs. Hardware threads of one core stay
    together; where a node has more ranks than usable cores, ranks share cores.

    Raises
    ------
    NotBound
        If the machine has one node, or no node with usable CPUs.
    """
    _refuse_one_node(topology)
    nodes = [node for node, cpus in topology.nodes.items() if cpus & usable]
    if not nodes:
        raise NotBound("no usable CPU at any NUMA node")
    node_index = [other * len(nodes) // ranks for other in range(ranks)]
    node = nodes[node_index[rank]]
    sharers, position = node_index.count(node_index[rank]), rank - node_index.index(node_index[rank])

    cpus = topology.nodes[node] & usable
    cores = sorted({tuple(sorted(topology.cores.get(cpu, {cpu}) & cpus)) for cpu in cpus})
    first, end = position * len(cores) // sharers, (position + 1) * len(cores) // sharers
    return {node: set().union(*cores[first : max(end, first + 1)])}


def bind(rank: int, ranks: int, gpus: Sequence[int] = (), sysfs: Path = SYSFS) -> str:
    """Bind this process and the threads that it has, to be called before it allocates; never fails.

    Parameters
    ----------
    rank, ranks
        This process and the number of processes on this machine.
    gpus
        CUDA indices of the GPUs that this process drives; none on a CPU.

    Returns
    -------
    str
        What was done, or why nothing was.
    """
    try:
        if not hasattr(os, "sched_setaffinity"):
            raise NotBound(f"{platform.system()} does not support CPU affinity")
        topology, usable = read_topology(sysfs), frozenset(os.sched_getaffinity(0))
        if gpus:
            addresses = [pci_address(gpu) for gpu in gpus]
            cpus_of = closest_to_gpus(topology, usable, {address: node_of_gpu(address, sysfs) for address in addresses})
        else:
            cpus_of = share_of_rank(topology, usable, rank, ranks)
        cpus = set().union(*cpus_of.values())
        _move_threads(cpus)
    except NotBound as reason:
        return f"not bound: {reason}"
    # A job that trains unbound is better than none: an odd /sys, CPUs taken away meanwhile, no CUDA.
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        return f"not bound: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return f"bound to CPUs {format_cpus(cpus)} of NUMA node {format_cpus(cpus_of)}"


class Placement(visible.Placement, Protocol):
    """The parameters of a job that say where its ranks run."""

    binding: str


def bind_rank(p: Placement) -> None:
    """Bind this rank as its parameters ask, next to its GPUs."""
    if p.binding == "numa":
        gpus = [device.index for device in visible.rank_devices(p) if device.type == "cuda"]
        NOTES.append(bind(int(os.environ.get("LOCAL_RANK", "0")), p.ranks_per_node, gpus))


def bound(sysfs: Path = SYSFS) -> dict[str, Any]:
    """What the calling thread is bound to; None for what the system does not report.

    Returns
    -------
    dict
        `cpus` ("0-3,8"), `numa_nodes` (of these CPUs), and `note`: what `bind_rank` did, or why it did nothing.
    """
    cpus = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    nodes = read_topology(sysfs).nodes
    return {
        "cpus": None if cpus is None else format_cpus(cpus),
        "numa_nodes": [node for node in nodes if nodes[node] & cpus] if cpus and nodes else None,
        "note": NOTES[-1] if NOTES else None,
    }


def pci_address(gpu: int) -> str:
    """PCI address of a CUDA device as /sys writes it, such as 0000:3b:00.0."""
    found = torch.cuda.get_device_properties(gpu)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def parse_cpus(text: str) -> frozenset[int]:
    """CPUs of a list as Linux writes it.

    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Write CPUs as Linux does.

    >>> format_cpus({8, 2, 1, 0})
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _refuse_one_node(topology: Topology) -> None:
    with_cpus = sum(bool(cpus) for cpus in topology.nodes.values())
    if with_cpus < 2:
        raise NotBound("the machine has one NUMA node" if with_cpus else "the system shows no NUMA nodes")


def _move_threads(cpus: set[int]) -> None:
    """Move all threads of this process, save those that something else has put elsewhere."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    for task in Path("/proc/self/task").iterdir():
        thread = int(task.name)
        try:
            if os.sched_getaffinity(thread) == before:
                os.sched_setaffinity(thread, cpus)
        except OSError:
            pass  # it has ended meanwhile

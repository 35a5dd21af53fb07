"""Bind a rank to the CPUs of the NUMA nodes closest to its GPUs.

Linux allocates the memory of a process on the node that the process runs on. torchrun's `--numa-binding` is not used:
it starts no process where the program `numactl` or the entry in /sys is missing; it treats a GPU whose node is unknown
(`numa_node` is -1) as if it were at node 0; and strategies with a single process would need a launcher.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from multicard.core.system import read_or_none
from multicard.observe.record.visible import rank_devices

SYSFS = Path("/sys")

NOTES: list[str] = []  # what each call of `bind_rank` in this process did, in the words of `bind`; the latest is last


def read_nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """Return the CPUs of each NUMA node, by the number of the node; empty if /sys shows no node.

    A node that has only memory is included, with an empty set of CPUs.
    """
    nodes: dict[int, frozenset[int]] = {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        cpus = read_or_none((folder / "cpulist").read_text)
        if cpus is not None:
            nodes[int(folder.name.removeprefix("node"))] = parse_cpus(cpus)
    return dict(sorted(nodes.items()))


def node_of_gpu(address: str, sysfs: Path = SYSFS) -> int | None:
    """Return the NUMA node of the PCI device at an address; None if /sys does not show it, or shows -1 (unknown)."""
    text = read_or_none((sysfs / f"bus/pci/devices/{address}/numa_node").read_text)
    if text is None:
        return None
    node = int(text)
    return None if node < 0 else node


def closest_to_gpus(
    nodes: Mapping[int, frozenset[int]], usable: frozenset[int], gpus: Mapping[str, int | None]
) -> dict[int, frozenset[int]]:
    """Return the usable CPUs of the nodes closest to the GPUs of one rank, by node.

    Ranks whose GPUs are at the same node share all its CPUs, as with torchrun's `--numa-binding=node`. `nodes`: CPUs of
    each node; `usable`: CPUs that this process may run on; `gpus`: node of each GPU, or None if that is unknown, by the
    PCI address of the GPU.

    >>> two = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
    >>> closest_to_gpus(two, usable=frozenset({1, 2, 3}), gpus={"0000:3b:00.0": 0})
    {0: frozenset({1})}

    Raises `ValueError` if fewer than two nodes have CPUs, if the node of a GPU is unknown, or if the node of a GPU has
    no usable CPU.
    """
    nodes_with_cpus = [node for node, cpus in nodes.items() if cpus]
    if not nodes_with_cpus:
        raise ValueError("the system shows no NUMA nodes")
    if len(nodes_with_cpus) == 1:
        raise ValueError("the machine has one NUMA node")
    cpus_of: dict[int, frozenset[int]] = {}
    for address, node in gpus.items():
        if node is None:
            raise ValueError(f"the NUMA node of the GPU at {address} is unknown")
        cpus_of[node] = nodes.get(node, frozenset()) & usable
        if not cpus_of[node]:
            raise ValueError(f"no usable CPU at NUMA node {node} of the GPU at {address}")
    return dict(sorted(cpus_of.items()))


def bind(gpus: Sequence[int], sysfs: Path = SYSFS) -> str:
    """Bind this process to the CPUs closest to the GPUs that it drives; return a sentence for rank.json.

    The sentence says which CPUs the process is bound to, or why it is not bound, because a failure raises no error.
    Threads that the process has already are bound, too, except those that something else has bound. Call this before
    the process allocates memory: memory that is allocated already stays at its node. `gpus`: CUDA indices.
    """
    try:
        if not gpus:
            raise ValueError("the rank drives no GPU")
        usable = frozenset(os.sched_getaffinity(0))
        addresses = [pci_address(gpu) for gpu in gpus]
        nodes_of_gpus = {address: node_of_gpu(address, sysfs) for address in addresses}
        cpus_of = closest_to_gpus(read_nodes(sysfs), usable, nodes_of_gpus)
        cpus = frozenset().union(*cpus_of.values())
        _move_threads(cpus)
    # A job that trains unbound is better than none. An unusual /sys, CPUs that were taken away in the meantime, and a
    # process without CUDA all raise one of these.
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        return f"not bound: {' '.join(str(error).split())[:200]}"
    return f"bound to CPUs {format_cpus(cpus)} of NUMA node {format_cpus(cpus_of)}"


def bind_rank(p: Any) -> None:
    """Bind this rank to the CPUs closest to its GPUs if `p.binding` is "numa", and add to `NOTES` what was done.

    `p`: parameters of a job: `binding`, and those that `rank_devices` needs.
    """
    if p.binding == "numa":
        gpus = [device.index for device in rank_devices(p) if device.type == "cuda"]
        NOTES.append(bind(gpus))


class Bound(NamedTuple):
    """The CPUs that a thread may run on, as rank.json has them."""

    cpus: str  # a list in the form that Linux writes, such as "0-3,8"
    numa_nodes: list[int] | None  # nodes that have any of the CPUs; None if /sys shows no node
    note: str | None  # what the latest call of `bind_rank` did; None if this rank was not asked to bind


def bound(sysfs: Path = SYSFS) -> Bound:
    """Return which CPUs the calling thread may run on."""
    cpus = frozenset(os.sched_getaffinity(0))
    nodes = read_nodes(sysfs)
    nodes_of_thread = [node for node, cpus_of_node in nodes.items() if cpus_of_node & cpus]
    return Bound(
        cpus=format_cpus(cpus),
        numa_nodes=nodes_of_thread if nodes else None,
        note=NOTES[-1] if NOTES else None,
    )


def pci_address(gpu: int) -> str:
    """Return the PCI address of a CUDA device as /sys writes it, such as 0000:3b:00.0."""
    # PyTorch's type stubs lack these three properties.
    device: Any = torch.cuda.get_device_properties(gpu)
    return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers in a list of CPUs that Linux has written.

    >>> sorted(parse_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return numbers of CPUs, or of nodes, as a list in the form that Linux writes.

    >>> format_cpus({8, 2, 1, 0})
    '0-2,8'
    """
    parts: list[str] = []
    first = last = None
    for cpu in sorted(cpus):
        if first is None or last is None or cpu > last + 1:
            parts.append(str(cpu))
            first = cpu
        else:
            parts[-1] = f"{first}-{cpu}"
        last = cpu
    return ",".join(parts)


def _move_threads(cpus: frozenset[int]) -> None:
    """Move all threads of this process to these CPUs, except those that something else has bound.

    Something else has bound a thread if its CPUs differ from those of the calling thread.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    for task in Path("/proc/self/task").iterdir():
        thread = int(task.name)
        with suppress(OSError):  # the thread may have ended in the meantime
            if os.sched_getaffinity(thread) == before:
                os.sched_setaffinity(thread, cpus)

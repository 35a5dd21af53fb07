"""Bind a rank to the CPUs of the NUMA node closest to its GPU.

Linux takes the memory of a process from the node that it runs on. torchrun's `--numa-binding` is not used: it starts no
process where there is no `numactl` program or no /sys entry, treats a GPU of unknown node (`numa_node` -1) as one of
node 0, and would put the one-process strategies under a launcher too.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from multicard.core.system import read_or_none
from multicard.record.visible import rank_devices

SYSFS = Path("/sys")

NOTES: list[str] = []  # of this process


def read_nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """Read the CPUs of each NUMA node that Linux shows, none for a node of memory alone; without /sys there is none."""
    nodes = {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        cpus = read_or_none((folder / "cpulist").read_text)
        if cpus is not None:
            nodes[int(folder.name.removeprefix("node"))] = parse_cpus(cpus)
    return dict(sorted(nodes.items()))


def node_of_gpu(address: str, sysfs: Path = SYSFS) -> int | None:
    """NUMA node of a PCI device; None where the machine reports none (-1)."""
    node = read_or_none((sysfs / f"bus/pci/devices/{address}/numa_node").read_text)
    return None if node is None or int(node) < 0 else int(node)


def closest_to_gpus(
    nodes: Mapping[int, frozenset[int]], usable: frozenset[int], gpus: Mapping[str, int | None]
) -> dict[int, frozenset[int]]:
    """Usable CPUs of the nodes closest to the GPUs of one rank, by node.

    Ranks whose GPUs are at one node share all its CPUs, as with torchrun's `--numa-binding=node`. `gpus`: node of each
    GPU, by its PCI address.

    Raises `ValueError` if the machine has one node, or a GPU's node is unknown, or has no CPU that this process may
    use.
    """
    with_cpus = sum(map(bool, nodes.values()))
    if with_cpus < 2:
        raise ValueError("the machine has one NUMA node" if with_cpus else "the system shows no NUMA nodes")
    cpus_of: dict[int, frozenset[int]] = {}
    for address, node in gpus.items():
        if node is None:
            raise ValueError(f"the NUMA node of the GPU at {address} is unknown")
        cpus_of[node] = nodes.get(node, frozenset()) & usable
        if not cpus_of[node]:
            raise ValueError(f"no usable CPU at NUMA node {node} of the GPU at {address}")
    return dict(sorted(cpus_of.items()))


def bind(gpus: Sequence[int], sysfs: Path = SYSFS) -> str:
    """Bind this process and the threads that it has next to its GPUs, by their CUDA indices; say what was done.

    To be called before it allocates. It never fails.
    """
    try:
        if not gpus:
            raise ValueError("the rank drives no GPU")
        usable, addresses = frozenset(os.sched_getaffinity(0)), [pci_address(gpu) for gpu in gpus]
        cpus_of = closest_to_gpus(
            read_nodes(sysfs), usable, {address: node_of_gpu(address, sysfs) for address in addresses}
        )
        cpus = frozenset().union(*cpus_of.values())
        _move_threads(cpus)
    # A job that trains unbound is better than none: an odd /sys, CPUs taken away meanwhile, no CUDA.
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        return f"not bound: {' '.join(str(error).split())[:200]}"
    return f"bound to CPUs {format_cpus(cpus)} of NUMA node {format_cpus(cpus_of)}"


def bind_rank(p: Any) -> None:
    """Bind this rank as its parameters ask (`binding`, and those of `rank_devices`), next to its GPUs."""
    if p.binding == "numa":
        gpus = [device.index for device in rank_devices(p) if device.type == "cuda"]
        NOTES.append(bind(gpus))


def bound(sysfs: Path = SYSFS) -> dict[str, Any]:
    """What the calling thread is bound to: `cpus` ("0-3,8"), their `numa_nodes`, and `note`: what `bind_rank` did."""
    cpus = frozenset(os.sched_getaffinity(0))
    nodes = read_nodes(sysfs)
    return {
        "cpus": format_cpus(cpus),
        "numa_nodes": [node for node in nodes if nodes[node] & cpus] if nodes else None,
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


def _move_threads(cpus: frozenset[int]) -> None:
    """Move all threads of this process, save those that something else has put elsewhere."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    for task in Path("/proc/self/task").iterdir():
        thread = int(task.name)
        with suppress(OSError):  # it has ended meanwhile
            if os.sched_getaffinity(thread) == before:
                os.sched_setaffinity(thread, cpus)

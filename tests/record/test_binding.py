"""A rank is bound next to its GPU; ranks without GPUs divide the nodes; where neither is possible nothing is bound."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multicard.record import binding
from multicard.record.binding import NotBound, Topology, bind, bound, closest_to_gpus, read_topology, share_of_rank
from observed_scripts import Server

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="CPU affinity is Linux's")
TWO_CPUS = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two usable CPUs"
)


def machine(sysfs: Path, nodes: dict[int, str], threads: list[str] = (), gpus: dict[str, str] | None = None) -> Path:
    """Lay out /sys as Linux does: lists of CPUs by node, hardware threads by core, nodes by GPU."""
    for node, cpus in nodes.items():
        folder = sysfs / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for core in threads:
        for cpu in map(int, core.split(",")):
            folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{core}\n")
    for address, node in (gpus or {}).items():
        folder = sysfs / f"bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return sysfs


# Two sockets of four cores, two hardware threads each, numbered as Linux does on Intel: 0-3 and 8-11 are of socket 0.
SOCKETS = {0: "0-3,8-11", 1: "4-7,12-15"}
THREADS = [f"{core},{core + 8}" for core in range(8)]
ALL = frozenset(range(16))


@pytest.fixture
def two_sockets(tmp_path: Path) -> Topology:
    return read_topology(machine(tmp_path, SOCKETS, THREADS))


def test_nodes_and_cores_are_read_from_lists_with_ranges(two_sockets: Topology) -> None:
    assert two_sockets.nodes == {0: {0, 1, 2, 3, 8, 9, 10, 11}, 1: {4, 5, 6, 7, 12, 13, 14, 15}}
    assert two_sockets.cores[3] == two_sockets.cores[11] == {3, 11}


def test_a_rank_goes_to_the_nodes_of_its_gpus_and_keeps_to_the_cpus_that_slurm_leaves_it(
    two_sockets: Topology, tmp_path: Path
) -> None:
    far, near = {"0000:c1:00.0": 1}, {"0000:01:00.0": 0}
    assert closest_to_gpus(two_sockets, ALL, far) == {1: {4, 5, 6, 7, 12, 13, 14, 15}}
    both = closest_to_gpus(two_sockets, ALL, {**far, **near, "0000:02:00.0": 0})
    assert list(both) == [0, 1] and set().union(*both.values()) == ALL
    assert closest_to_gpus(two_sockets, frozenset({2, 3, 4}), near) == {0: {2, 3}}
    with pytest.raises(NotBound, match="no usable CPU at NUMA node 1 of the GPU at 0000:c1"):
        closest_to_gpus(two_sockets, frozenset({2, 3}), far)
    # A node of memory alone, and a GPU of which the machine tells no node.
    sysfs = machine(tmp_path / "other", {0: "0-1", 1: "", 2: "2-3"}, gpus={"0000:01:00.0": "-1", "0000:c1:00.0": "1"})
    topology = read_topology(sysfs)
    assert [binding.node_of_gpu(f"0000:{bus}:00.0", sysfs) for bus in ("01", "c1", "ff")] == [None, 1, None]
    with pytest.raises(NotBound, match="no usable CPU at NUMA node 1"):
        closest_to_gpus(topology, ALL, far)
    with pytest.raises(NotBound, match="is unknown"):
        closest_to_gpus(topology, ALL, {"0000:01:00.0": None})


@pytest.mark.parametrize(
    ("nodes", "usable", "shares"),
    [
        (SOCKETS, ALL, [{0: {0, 1, 2, 3, 8, 9, 10, 11}}, {1: {4, 5, 6, 7, 12, 13, 14, 15}}]),
        # Four halve the cores of the nodes, and keep hardware threads together; three use all cores once.
        (SOCKETS, ALL, [{0: {0, 1, 8, 9}}, {0: {2, 3, 10, 11}}, {1: {4, 5, 12, 13}}, {1: {6, 7, 14, 15}}]),
        (SOCKETS, ALL, [{0: {0, 1, 8, 9}}, {0: {2, 3, 10, 11}}, {1: {4, 5, 6, 7, 12, 13, 14, 15}}]),
        # What Slurm leaves them: three cores of a socket, and three threads of both.
        (SOCKETS, {0, 1, 2, 8, 9, 10}, [{0: {0, 8}}, {0: {1, 9}}, {0: {2, 10}}]),
        (SOCKETS, {1, 2, 5}, [{0: {1, 2}}, {1: {5}}]),
        # More ranks than cores share them evenly; fewer than nodes get nodes that are far apart.
        (
            SOCKETS,
            {0, 1, 4, 5},
            [{n: {c}} for n, c in ((0, 0), (0, 0), (0, 1), (0, 1), (1, 4), (1, 4), (1, 5), (1, 5))],
        ),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, ALL, [{0: {0}}, {2: {2}}]),
        ({0: "0-1", 1: "", 2: "2-3"}, ALL, [{0: {0, 1}}, {2: {2, 3}}]),  # a node without CPUs gets none
    ],
)
def test_ranks_without_gpus_share_the_nodes(
    nodes: dict[int, str], usable: set[int], shares: list[dict[int, set[int]]], tmp_path: Path
) -> None:
    topology, ranks = read_topology(machine(tmp_path, nodes, THREADS)), len(shares)
    assert [share_of_rank(topology, frozenset(usable), rank, ranks) for rank in range(ranks)] == shares


@pytest.mark.parametrize(
    ("nodes", "gpus", "reason"),
    [
        ({0: "0-63"}, [], "the machine has one NUMA node"),
        ({0: "0-63", 1: ""}, [], "the machine has one NUMA node"),
        ({}, [], "the system shows no NUMA nodes"),
        (SOCKETS, [0], "RuntimeError: Found no NVIDIA driver on your system"),
    ],
)
def test_where_nothing_can_be_bound_the_reason_is_given(
    nodes: dict[int, str], gpus: list[int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver(gpu: int) -> None:
        raise RuntimeError("Found no NVIDIA driver\non your system")

    monkeypatch.setattr(torch.cuda, "get_device_properties", no_driver)
    before = bound()
    output = bind(0, 2, gpus, machine(tmp_path, nodes))
    assert output.startswith("not bound: ")
    if sys.platform == "linux":
        assert output == f"not bound: {reason}"
    assert bound() == before


# In a process of its own, since a test that moved the test runner would slow the others: a node for each of the first
# two usable CPUs, a thread from before, one from after.
BIND = """
import os, threading
from pathlib import Path
from types import SimpleNamespace
import torch
from multicard.record.binding import bind, bound
sysfs, gpus = Path("SYSFS"), GPUS
found = [SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC0 + gpu, pci_device_id=0) for gpu in range(2)]
torch.cuda.get_device_properties = found.__getitem__
go, seen = threading.Event(), []
def look(): go.wait(); seen.append(os.sched_getaffinity(0))
old = threading.Thread(target=look); old.start()
print(bind(1, 2, gpus, sysfs))
go.set(); old.join()
new = threading.Thread(target=look); new.start(); new.join()
print(*seen, bound(sysfs))
"""


@TWO_CPUS
@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "first"), [([], 1), ([0], 0)])
def test_a_process_and_its_threads_old_and_new_are_moved(
    server: Server, tmp_path: Path, gpus: list[int], first: int
) -> None:
    usable = sorted(os.sched_getaffinity(0))[:2]
    addresses = {"0000:c0:00.0": "0", "0000:c1:00.0": "1"}
    sysfs = machine(tmp_path, {0: str(usable[0]), 1: str(usable[1])}, gpus=addresses)
    done = server.run(tmp_path, BIND.replace("SYSFS", str(sysfs)).replace("GPUS", str(gpus)))
    output, state = done.output.splitlines()
    cpu = usable[first]
    assert output == f"bound to CPUs {cpu} of NUMA node {first}"
    assert state.startswith(f"{{{cpu}}} {{{cpu}}} {{'cpus': '{cpu}', 'numa_nodes': [{first}], ")


@LINUX
def test_a_real_machine_is_read_as_the_kernel_counts_it() -> None:
    topology, state = read_topology(), bound()
    assert state["cpus"] == binding.format_cpus(os.sched_getaffinity(0))
    for cpu, core in topology.cores.items():
        assert cpu in core
    if topology.nodes:
        online = (binding.SYSFS / "devices/system/cpu/online").read_text()
        assert frozenset().union(*topology.nodes.values()) == binding.parse_cpus(online)
        assert set(state["numa_nodes"]) <= set(topology.nodes)


def test_a_gpu_has_the_address_that_the_system_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: found)
    assert binding.pci_address(0) == "0001:3b:0a.0"


@pytest.mark.gpu
def test_every_real_gpu_has_an_address_of_a_real_device() -> None:
    for gpu in range(torch.cuda.device_count()):
        address = binding.pci_address(gpu)
        if (binding.SYSFS / "bus/pci/devices").exists():
            assert (binding.SYSFS / "bus/pci/devices" / address).exists()


@pytest.mark.parametrize("text", ["0", "0-3,8-11", "1,3,5-6", ""])
def test_a_list_of_cpus_is_written_as_it_was_read(text: str) -> None:
    assert binding.format_cpus(binding.parse_cpus(f"{text}\n")) == text

"""A rank is bound next to its GPU; ranks without GPUs divide the nodes; where neither is possible nothing is bound."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multicard.record import binding
from multicard.record.binding import NotBound, Topology, bind, bound, closest_to_gpus, read_topology, share_of_rank

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


def test_a_rank_goes_to_the_node_of_its_gpu(two_sockets: Topology) -> None:
    assert closest_to_gpus(two_sockets, ALL, {"0000:c1:00.0": 1}) == {1: {4, 5, 6, 7, 12, 13, 14, 15}}


def test_a_process_that_drives_gpus_at_both_nodes_has_both(two_sockets: Topology) -> None:
    cpus_of = closest_to_gpus(two_sockets, ALL, {"0000:c1:00.0": 1, "0000:01:00.0": 0, "0000:02:00.0": 0})
    assert list(cpus_of) == [0, 1]
    assert set().union(*cpus_of.values()) == ALL


def test_slurm_leaves_a_rank_only_its_cpus(two_sockets: Topology) -> None:
    assert closest_to_gpus(two_sockets, frozenset({2, 3, 4}), {"0000:01:00.0": 0}) == {0: {2, 3}}
    with pytest.raises(NotBound, match="no usable CPU at NUMA node 1 of the GPU at 0000:c1"):
        closest_to_gpus(two_sockets, frozenset({2, 3}), {"0000:c1:00.0": 1})


def test_a_gpu_of_unknown_node_binds_nothing(tmp_path: Path) -> None:
    sysfs = machine(tmp_path, SOCKETS, gpus={"0000:01:00.0": "-1", "0000:c1:00.0": "1"})
    assert binding.node_of_gpu("0000:01:00.0", sysfs) is None
    assert binding.node_of_gpu("0000:c1:00.0", sysfs) == 1
    assert binding.node_of_gpu("0000:ff:00.0", sysfs) is None
    with pytest.raises(NotBound, match="is unknown"):
        closest_to_gpus(read_topology(sysfs), ALL, {"0000:01:00.0": None})


def test_two_ranks_without_gpus_take_a_node_each(two_sockets: Topology) -> None:
    assert share_of_rank(two_sockets, ALL, 0, 2) == {0: {0, 1, 2, 3, 8, 9, 10, 11}}
    assert share_of_rank(two_sockets, ALL, 1, 2) == {1: {4, 5, 6, 7, 12, 13, 14, 15}}


def test_four_ranks_halve_the_cores_of_two_nodes_and_keep_hardware_threads_together(two_sockets: Topology) -> None:
    assert [share_of_rank(two_sockets, ALL, rank, 4) for rank in range(4)] == [
        {0: {0, 1, 8, 9}},
        {0: {2, 3, 10, 11}},
        {1: {4, 5, 12, 13}},
        {1: {6, 7, 14, 15}},
    ]


def test_three_ranks_use_all_cores_once(two_sockets: Topology) -> None:
    shares = [share_of_rank(two_sockets, ALL, rank, 3) for rank in range(3)]
    cpus = [cpu for share in shares for place in share.values() for cpu in place]
    assert sorted(cpus) == sorted(ALL)
    assert [list(share) for share in shares] == [[0], [0], [1]]


def test_ranks_share_only_what_slurm_leaves_them(two_sockets: Topology) -> None:
    one_socket = frozenset({0, 1, 2, 8, 9, 10})
    assert share_of_rank(two_sockets, one_socket, 0, 3) == {0: {0, 8}}
    assert share_of_rank(two_sockets, one_socket, 2, 3) == {0: {2, 10}}
    one_thread_each = frozenset({1, 2, 5})
    assert share_of_rank(two_sockets, one_thread_each, 0, 2) == {0: {1, 2}}
    assert share_of_rank(two_sockets, one_thread_each, 1, 2) == {1: {5}}


def test_more_ranks_than_cores_share_cores_evenly(two_sockets: Topology) -> None:
    shares = [share_of_rank(two_sockets, frozenset({0, 1, 4, 5}), rank, 8) for rank in range(8)]
    assert shares == [{0: {0}}, {0: {0}}, {0: {1}}, {0: {1}}, {1: {4}}, {1: {4}}, {1: {5}}, {1: {5}}]


def test_four_nodes_and_two_ranks_give_the_ranks_far_nodes(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, {0: "0", 1: "1", 2: "2", 3: "3"}))
    assert [share_of_rank(topology, ALL, rank, 2) for rank in range(2)] == [{0: {0}}, {2: {2}}]


def test_a_node_without_cpus_gets_no_rank(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, {0: "0-1", 1: "", 2: "2-3"}))
    assert [share_of_rank(topology, ALL, rank, 2) for rank in range(2)] == [{0: {0, 1}}, {2: {2, 3}}]
    with pytest.raises(NotBound, match="no usable CPU at NUMA node 1"):
        closest_to_gpus(topology, ALL, {"0000:01:00.0": 1})


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({0: "0-63"}, "the machine has one NUMA node"),
        ({0: "0-63", 1: ""}, "the machine has one NUMA node"),
        ({}, "the system shows no NUMA nodes"),
    ],
)
def test_without_two_nodes_nothing_is_bound_and_the_reason_is_given(
    tmp_path: Path, nodes: dict[int, str], reason: str
) -> None:
    before = bound()
    output = bind(0, 2, sysfs=machine(tmp_path, nodes))
    if sys.platform == "linux":
        assert output == f"not bound: {reason}"
    assert output.startswith("not bound: ")
    assert bound() == before


def test_a_gpu_that_does_not_answer_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(gpu: int) -> None:
        raise RuntimeError("Found no NVIDIA driver\non your system")

    monkeypatch.setattr(torch.cuda, "get_device_properties", no_driver)
    before = bound()
    assert bind(0, 1, gpus=[0], sysfs=machine(tmp_path, SOCKETS)).startswith("not bound: ")
    assert bound() == before


# In a process of its own, since a test that moved the test runner would slow the others: a node for each of the first
# two usable CPUs, a thread from before, one from after.
BIND = """
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
import torch
from multicard.record.binding import bind, bound
sysfs, gpus = Path(sys.argv[1]), eval(sys.argv[2])
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
@pytest.mark.parametrize(("gpus", "first", "policy"), [([], 1, False), ([1], 1, False), ([0], 0, True)])
def test_a_process_and_its_threads_old_and_new_are_moved(
    tmp_path: Path, gpus: list[int], first: int, policy: bool
) -> None:
    usable = sorted(os.sched_getaffinity(0))[:2]
    addresses = {"0000:c0:00.0": "0", "0000:c1:00.0": "1"}
    sysfs = machine(tmp_path, {0: str(usable[0]), 1: str(usable[1])}, gpus=addresses)
    done = subprocess.run(
        [sys.executable, "-c", BIND, str(sysfs), str(gpus)], capture_output=True, text=True, check=True, timeout=600
    )
    output, state = done.stdout.splitlines()
    cpu = usable[first]
    assert output.startswith(f"bound to CPUs {cpu} of NUMA node {first}, memory ")
    assert state.startswith(f"{{{cpu}}} {{{cpu}}} {{'cpus': '{cpu}', 'numa_nodes': [{first}], ")
    # Node 0 is real on every machine, so the kernel takes it unless the container forbids the call; node 1 is not.
    if policy and "not preferred" not in output:
        assert "'memory_policy': 'preferred:0'" in state


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

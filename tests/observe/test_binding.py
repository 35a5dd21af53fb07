"""A rank is bound next to its GPU, or told why not."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multicard.observe.record import binding
from multicard.observe.record.binding import bind, bound, closest_to_gpus, read_nodes
from observed_scripts import Server

TWO_CPUS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two usable CPUs")


def machine(sysfs: Path, nodes: dict[int, str], gpus: dict[str, str] | None = None) -> Path:
    """Lay out /sys as Linux does: lists of CPUs by node, nodes by GPU."""
    for node, cpus in nodes.items():
        folder = sysfs / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for address, node in (gpus or {}).items():
        folder = sysfs / f"bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return sysfs


# Two sockets of four cores, two hardware threads each, numbered as Linux does on Intel: 0-3 and 8-11 are of socket 0.
SOCKETS = {0: "0-3,8-11", 1: "4-7,12-15"}
ALL = frozenset(range(16))


def test_a_rank_goes_to_the_nodes_of_its_gpus_and_keeps_to_the_cpus_that_slurm_leaves_it(tmp_path: Path) -> None:
    two_sockets = read_nodes(machine(tmp_path, SOCKETS))
    far, near = {"0000:c1:00.0": 1}, {"0000:01:00.0": 0}
    assert closest_to_gpus(two_sockets, ALL, far) == {1: {4, 5, 6, 7, 12, 13, 14, 15}}
    both = closest_to_gpus(two_sockets, ALL, {**far, **near, "0000:02:00.0": 0})
    assert list(both) == [0, 1] and set().union(*both.values()) == ALL
    assert closest_to_gpus(two_sockets, frozenset({2, 3, 4}), near) == {0: {2, 3}}
    with pytest.raises(ValueError, match="no usable CPU at NUMA node 1 of the GPU at 0000:c1"):
        closest_to_gpus(two_sockets, frozenset({2, 3}), far)
    # A node of memory alone, and a GPU of which the machine tells no node.
    sysfs = machine(tmp_path / "other", {0: "0-1", 1: "", 2: "2-3"}, gpus={"0000:01:00.0": "-1", "0000:c1:00.0": "1"})
    nodes = read_nodes(sysfs)
    assert [binding.node_of_gpu(f"0000:{bus}:00.0", sysfs) for bus in ("01", "c1", "ff")] == [None, 1, None]
    with pytest.raises(ValueError, match="no usable CPU at NUMA node 1"):
        closest_to_gpus(nodes, ALL, far)
    with pytest.raises(ValueError, match="is unknown"):
        closest_to_gpus(nodes, ALL, {"0000:01:00.0": None})


@pytest.mark.parametrize(
    ("nodes", "gpus", "reason"),
    [
        ({0: "0-63"}, [0], "the machine has one NUMA node"),
        ({0: "0-63", 1: ""}, [0], "the machine has one NUMA node"),
        ({}, [0], "the system shows no NUMA nodes"),
        (SOCKETS, [], "the rank drives no GPU"),
        (SOCKETS, [1], "Found no NVIDIA driver on your system"),
    ],
)
def test_where_nothing_can_be_bound_the_reason_is_given(
    nodes: dict[int, str], gpus: list[int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def properties(gpu: int) -> SimpleNamespace:
        if gpu == 1:
            raise RuntimeError("Found no NVIDIA driver\non your system")
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    before = bound()
    assert bind(gpus, machine(tmp_path, nodes, {"0000:01:00.0": "0"})) == f"not bound: {reason}"
    assert bound() == before


# In a process of its own, since a test that moved the test runner would slow the others: a node for each of the first
# two usable CPUs, a thread from before, one from after.
BIND = """
import os, threading
from pathlib import Path
from types import SimpleNamespace
import torch
from multicard.observe.record.binding import bind, bound
sysfs = Path("SYSFS")
found = [SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC0 + gpu, pci_device_id=0) for gpu in range(2)]
torch.cuda.get_device_properties = found.__getitem__
go, seen = threading.Event(), []
def look(): go.wait(); seen.append(os.sched_getaffinity(0))
old = threading.Thread(target=look); old.start()
print(bind([1], sysfs))
go.set(); old.join()
new = threading.Thread(target=look); new.start(); new.join()
print(*seen, bound(sysfs))
"""


@TWO_CPUS
@pytest.mark.slow
def test_a_process_and_its_threads_old_and_new_are_moved(server: Server, tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))[:2]
    addresses = {"0000:c0:00.0": "0", "0000:c1:00.0": "1"}
    sysfs = machine(tmp_path, {0: str(usable[0]), 1: str(usable[1])}, gpus=addresses)
    done = server.run(tmp_path, BIND.replace("SYSFS", str(sysfs)))
    output, state, *_ = done.output.splitlines()  # and what Triton prints at the end
    cpu = usable[1]
    assert output == f"bound to CPUs {cpu} of NUMA node 1"
    assert state.startswith(f"{{{cpu}}} {{{cpu}}} Bound(cpus='{cpu}', numa_nodes=[1], ")


def test_a_real_machine_is_read_as_the_kernel_counts_it() -> None:
    nodes, state = read_nodes(), bound()
    assert state.cpus == binding.format_cpus(os.sched_getaffinity(0))
    if nodes:
        online = (binding.SYSFS / "devices/system/cpu/online").read_text()
        assert frozenset().union(*nodes.values()) == binding.parse_cpus(online)
        assert set(state.numa_nodes) <= set(nodes)


@pytest.mark.gpu
def test_every_real_gpu_has_an_address_of_a_real_device() -> None:
    for gpu in range(torch.cuda.device_count()):
        address = binding.pci_address(gpu)
        if (binding.SYSFS / "bus/pci/devices").exists():
            assert (binding.SYSFS / "bus/pci/devices" / address).exists()


@pytest.mark.parametrize("text", ["0", "0-3,8-11", "1,3,5-6", ""])
def test_a_list_of_cpus_is_written_as_it_was_read(text: str) -> None:
    assert binding.format_cpus(binding.parse_cpus(f"{text}\n")) == text

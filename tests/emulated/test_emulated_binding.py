"""Ranks are bound next to their emulated GPUs, on a machine whose /sys puts those at different NUMA nodes."""

import json
import os
from pathlib import Path

import pytest
from emulated_jobs import run_program

from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

# Prints for each GPU its address, and then of a process for each what it says that it is bound to, and what it is.
PROGRAM = """
import json, os, sys
from pathlib import Path
from multicard.record.binding import bind, pci_address

sysfs, gpus, everything = Path(sys.argv[1]), (0, 1), os.sched_getaffinity(0)
for gpu in gpus:
    device = sysfs / "bus/pci/devices" / pci_address(gpu)
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{gpu}\\n")
found = []
for gpu in gpus:
    note = bind(gpu, len(gpus), [gpu], sysfs)
    found.append([pci_address(gpu), note, sorted(os.sched_getaffinity(0))])
    os.sched_setaffinity(0, everything)
print(json.dumps(found))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two usable CPUs")
def test_a_rank_is_bound_to_the_node_of_its_gpu(emulated: EmulatedGpus, tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    for node, cpu in enumerate(cpus):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    done = run_program(emulated, "-c", PROGRAM, tmp_path, gpus=2)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len({address for address, _, _ in found}) == 2
    for node, (_, note, bound_to) in enumerate(found):
        assert note.startswith(f"bound to CPUs {cpus[node]} of NUMA node {node}, memory")
        assert bound_to == [cpus[node]]

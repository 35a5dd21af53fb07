"""A GPU is the same whichever driver named it."""

import pytest

from multicard.analysis.result_comparison import environment_differences
from multicard.analysis.scenario_tables import machine
from multicard.core.text import gpu_name

OLD, NEW = "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, NEW), ("GeForce RTX 3080", "NVIDIA GeForce RTX 3080"), ("Quadro RTX 6000", "NVIDIA Quadro RTX 6000"),
        ("Tesla T4", "Tesla T4"), ("AMD Instinct MI300X", "AMD Instinct MI300X"), ("Synthetic GPU", "Synthetic GPU"),
        ("H100 PCIe", "NVIDIA H100 PCIe"), ("TITAN V", "NVIDIA TITAN V"),
    ],
)  # fmt: skip
def test_old_names_lack_the_maker(old: str, new: str) -> None:
    assert (gpu_name(old), gpu_name(new)) == (new, new)


def test_runs_under_an_old_and_a_new_driver_are_of_one_machine() -> None:
    old, new = ({"gpus": [{"name": name}] * 2, "processor": "EPYC", "logical_cpus": 8} for name in (OLD, NEW))
    assert machine(old) == machine(new)
    records = [[{"hardware": hardware, "profiler": {"used": "none"}}] for hardware in (old, new)]
    assert environment_differences(*records) == []

"""Where a run on several nodes can run, and where it is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from multicard.experiment.cluster import Cluster, machine_for
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import Run
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.vision.parameters import VisionParameters

TWO_NODES = Machine(cpus=16, gpus=4, nodes=2)


def unsupported(machine: Machine, **parameters: Any) -> str | None:
    return Run("run", VisionParameters(**parameters)).unsupported_reason(machine)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"strategy": "ddp", "devices": 8, "nodes": 2}, None),
        ({"strategy": "fsdp", "devices": 2, "nodes": 2, "device": "cpu"}, None),
        ({"strategy": "ddp", "devices": 8}, "needs 8 devices, 4 found"),
        ({"strategy": "ddp", "devices": 10, "nodes": 2}, "needs 5 devices on each node, 4 found"),
        ({"strategy": "ddp", "devices": 3, "nodes": 2}, "3 devices cannot be shared equally by 2 nodes"),
        ({"strategy": "ddp", "devices": 1, "nodes": 2}, "1 device cannot be shared equally by 2 nodes"),
        ({"strategy": "ddp", "devices": 3, "nodes": 3}, "needs 3 nodes, 2 found"),
        ({"strategy": "single", "nodes": 2}, "the strategy single is one process, which cannot use 2 nodes"),
        ({"strategy": "dp", "devices": 4, "nodes": 2}, "the strategy dp is one process, which cannot use 2 nodes"),
    ],
)
def test_nodes_share_the_devices_equally(parameters: dict[str, Any], reason: str | None) -> None:
    assert unsupported(TWO_NODES, **parameters) == reason


def test_tuning_needs_a_device_on_each_node_and_one_machine_runs_nothing_on_two() -> None:
    assert Run("run", LlmParameters(devices=8, nodes=2)).unsupported_reason(TWO_NODES) is None
    run = Run("run", LlmParameters(nodes=2))
    assert run.unsupported_reason(TWO_NODES) == "1 device cannot be shared equally by 2 nodes"
    here = dataclasses.replace(TWO_NODES, nodes=1)
    assert unsupported(here, strategy="ddp", devices=8, nodes=2) == "needs a Slurm allocation of 2 nodes"


def test_one_node_leaves_ids_as_they_were_and_two_show() -> None:
    assert "nodes" not in run_id(VisionParameters()) + run_id(LlmParameters())
    assert run_id(VisionParameters(strategy="ddp", devices=4, nodes=2)) == (
        "vision_digits_32px_ddp_cuda4_fp32_nodes2_r1"
    )
    assert VisionParameters().stated() == {}


def test_what_runs_meet_on_a_cluster_is_what_is_stated_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: cls(cpus=1, gpus=0, hidden_gpus="hidden; show them")))
    assert machine_for(None).hidden_gpus == "hidden; show them"
    node = machine_for(Cluster(nodes=3, cpus_per_node=64, gpus_per_node=8, gpu_memory_gb=80))
    assert (node.nodes, node.cpus, node.gpus, node.gpu_memory_bytes) == (3, 64, 8, 80 * 10**9)
    assert node.hidden_gpus is None, "those of the machine that plans are no matter"


def test_a_run_that_asks_for_more_cpus_than_a_node_has_is_not_runnable_there() -> None:
    node = Cluster(cpus_per_node=16, gpus_per_node=4)
    asked = {"device": "cuda", "strategy": "ddp", "devices": 4, "num_workers": 3}
    assert Run("run", VisionParameters(**asked)).unsupported_reason(machine_for(node)) is None
    more = Run("run", VisionParameters(**asked, threads=2))  # 4 x (2 threads + 3 workers)
    reason = "needs 20 CPUs of a node for its ranks and loader workers, 16 found"
    assert more.unsupported_reason(machine_for(node)) == reason
    assert more.unsupported_reason(machine_for(node).hypothetical()) is None
    # Nothing refuses them on a machine without Slurm: its CPUs are shared.
    assert more.unsupported_reason(Machine(cpus=16, gpus=4)) is None


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that knows of one job, on three nodes."""
    (tmp_path / "squeue").write_text('#!/bin/sh\n[ "$*" = "--noheader --jobs=7 --format=%D" ] && echo 3\n')
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("squeue")
@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        ({}, 1),
        ({"SLURM_JOB_ID": "7"}, 3),
        ({"SLURM_JOB_ID": "8"}, 1),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, 2),
        ({"SLURM_JOB_NUM_NODES": "2"}, 1),
    ],
)
def test_a_job_of_slurm_knows_its_nodes(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], nodes: int) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Machine.here().nodes == nodes

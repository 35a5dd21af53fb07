"""What a run asks of a cluster follows from its parameters."""

import os
from pathlib import Path
from typing import Any

import pytest

from multicard.config.load import check
from multicard.config.resources import (
    REQUESTED,
    memory_mb,
    memory_of_attempt_mb,
    request,
    step_memory_mb,
    step_minutes,
)
from multicard.config.runs import Run
from multicard.core.errors import UserError
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.models import Model
from multicard.programs.script.parameters import ScriptParameters
from multicard.programs.vision.parameters import VisionParameters


def vision(**parameters: Any) -> Run:
    return Run("run", VisionParameters(**parameters))


def experiment(**stated: Any) -> Any:
    scenario = {"question": "?", "figures": ["step_breakdown"], "fixed": {"device": "cpu"}}
    return check({"scenarios": {"a": scenario}} | stated, "test")


def asked(run: Run, timing: str = "exclusive") -> dict[str, Any]:
    return {name: value for name, value in request(run, experiment(timing=timing)).items() if value is not None}


ALONE = {"slurm_extra": "--exclusive --nice=100 --mem''=0"}
TWO_NODES = {"strategy": "ddp", "devices": 8, "nodes": 2}


@pytest.mark.parametrize(
    ("parameters", "shared", "alone"),
    [
        ({"strategy": "ddp", "devices": 4}, {"nodes": 1, "gpu": 4}, ALONE),
        ({"device": "cpu", "strategy": "ddp", "devices": 2}, {"nodes": 1}, ALONE),
        (
            TWO_NODES,  # whose job counts GPUs for each node and starts its processes itself
            {"nodes": 2, "gres": "gpu:4", "mpi": "srun", "tasks": 2, "tasks_per_gpu": 0, "slurm_extra": "--no-kill"},
            {"slurm_extra": f"{ALONE['slurm_extra']} --no-kill"},
        ),
        (
            TWO_NODES | {"device": "cpu"},
            {"nodes": 2, "mpi": "srun", "tasks": 2, "slurm_extra": "--no-kill"},
            {"slurm_extra": f"{ALONE['slurm_extra']} --no-kill"},
        ),
    ],
)
def test_a_run_asks_for_its_nodes_and_gpus(
    parameters: dict[str, Any], shared: dict[str, Any], alone: dict[str, Any]
) -> None:
    run = vision(**parameters)
    assert asked(run, "shared") == shared
    assert asked(run) == shared | alone
    assert set(request(run, experiment())) == set(REQUESTED)


def test_all_memory_of_nodes_is_asked_for_unless_the_profile_states_it() -> None:
    assert request(vision(), experiment(), whole_memory=False)["slurm_extra"] == "--exclusive --nice=100"
    assert len({memory_of_attempt_mb(vision(), attempt, experiment()) for attempt in (1, 2, 3)}) == 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, 1),
        ({"num_workers": 3}, 4),
        ({"strategy": "ddp", "devices": 4, "threads": 2, "num_workers": 3}, 20),
        ({"strategy": "ddp", "devices": 8, "nodes": 2, "threads": 2, "num_workers": 3}, 20),
        ({"strategy": "dp", "devices": 4, "num_workers": 3}, 13),  # one process drives all GPUs, which share no workers
    ],
)
def test_a_node_has_a_cpu_for_each_thread_and_each_loading_process(parameters: dict[str, Any], expected: int) -> None:
    assert VisionParameters(**parameters).cpus_per_node == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        # (1000 + 80.4 of activations + 2 batches of 0.602) x 1.5 + 2000 = 3622, in whole hundreds.
        ({"device": "cpu", "image_size": 224, "batch_size": 1}, 3700),
        # The same per rank, 2 on each node: 2 x 1081.6 x 1.5 + 2000 = 5245.
        ({"device": "cpu", "image_size": 224, "batch_size": 1, "strategy": "ddp", "devices": 4, "nodes": 2}, 5300),
        # 4 x (4000 + (2 x 4 + 2) batches of 38.5) + 8 workers of 500: 21542 x 1.5 + 2000 = 34313.
        ({"image_size": 224, "strategy": "ddp", "devices": 4, "num_workers": 2, "prefetch_factor": 4}, 34400),
    ],
)
def test_memory_of_a_node_is_that_of_its_processes(parameters: dict[str, Any], expected: int) -> None:
    assert memory_mb(vision(**parameters)) == expected


def test_every_rank_of_tuning_reads_all_weights() -> None:
    # 4 ranks x (4000 + twice 8.03 billion weights of 2 bytes) x 1.5 + 2000.
    model = Model(architecture="llama3_8b", folder="no/such")
    run = Run("run", LlmParameters(model="big", devices=4), {"model": model})
    assert memory_mb(run) == pytest.approx(4 * (4000 + 2 * 8030.26 * 2) * 1.5 + 2000, abs=100)


def test_a_cluster_is_stated_in_numbers_or_as_a_profile_gives_them_in_text() -> None:
    for stated in ({"nodes": 2, "cpus_per_node": 16}, {"nodes": "2", "cpus_per_node": "16"}):
        read = experiment(cluster=stated).cluster
        assert (read.nodes, read.cpus_per_node, read.gpus_per_node) == (2, 16, 0)
    for stated, says in (
        ({"nodes": 2}, "cluster.cpus_per_node: missing"),
        ({"cpus_per_node": "many"}, "cluster.cpus_per_node: found 'many', "),
        ({"cpus_per_node": 2, "gpus": 4}, "cluster.gpus: unknown key"),
    ):
        with pytest.raises(UserError, match=f"^test: {says}"):
            experiment(cluster=stated)


@pytest.mark.parametrize(
    ("node_gb", "times"),
    [
        (None, [1, 2, 1]),  # the third attempt runs nothing
        (10.0, [1, 2, 1]),
        (5.0, [1, 1.25, 1]),
        (1.0, [0.25, 0.25, 0.25]),  # Slurm refuses what no node has
    ],
)
def test_a_job_that_was_lost_asks_for_more_memory_up_to_that_of_a_node(
    monkeypatch: pytest.MonkeyPatch, node_gb: float | None, times: list[float]
) -> None:
    monkeypatch.setattr("multicard.config.resources.memory_mb", lambda run: 4000)
    shared = experiment(timing="shared", cluster={"cpus_per_node": 8, "memory_per_node_gb": node_gb})
    asked_for = [memory_of_attempt_mb(vision(), attempt, shared) for attempt in (1, 2, 3)]
    assert asked_for == [4000 * factor for factor in times]
    assert memory_of_attempt_mb(vision(), 2, experiment(timing="shared")) == 8000, "no cluster, no limit"


def test_a_script_on_one_cpu_process_fits_a_small_node() -> None:
    # 2000 of Snakemake, launcher and profiler, and 1.5 x (1000 of the libraries + 2000 of the script).
    script = Run("run", ScriptParameters(command=["train.py"], device="cpu"))
    assert memory_mb(script) == 6500


def test_a_step_asks_for_more_by_the_traces_that_it_reads(tmp_path: Path) -> None:
    def trace(name: str, size: int) -> None:
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)

    for rank in range(4):
        trace(f"rank{rank}.json.gz", 10_000_000)
    assert (step_minutes(1), step_memory_mb(1, None)) == (20, 1500)
    assert step_minutes(1, tmp_path) == 24  # 40 MB at 10 MB per minute
    assert step_memory_mb(1, None, tmp_path) == 1500 + 4 * 10 * 100
    trace("report.nsys-rep", 30_000_000)
    assert step_minutes(2, tmp_path) == 2 * 27
    assert step_memory_mb(1, None, tmp_path) == 5500 + 300

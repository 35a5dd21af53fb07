"""The pipeline on a real Slurm: `snakemake --profile slurm` on two nodes of four GPUs each, all on this machine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from slurm_projects import FOR_SCRIPTS, SMALL, asked_for, multicard, project, record, slurm_cluster, snakemake

from conftest import ROOT
from multicard.config.load import read_profile
from multicard.core.reasons import describe_reason
from multicard.machine.slurm import checks as slurm_checks
from script.equipment import SHORT as SHORT_SCRIPT

pytestmark = pytest.mark.slow

EMBEDDED: dict[str, Any] = yaml.safe_load((ROOT / "config/tour.yaml").read_text(encoding="utf-8"))
SUFFIX = "warmup2_profiled3_width0.25_batch16_epochs1_steps8_r1"
ON_TWO_NODES = f"vision_digits_32px_ddp-ds_cpu2_fp32_nodes2_{SUFFIX}"
ON_A_GPU = f"vision_digits_32px_ddp-ds_cuda1_fp32_{SUFFIX}"
# What only a cluster can run.
EXPERIMENT: dict[str, Any] = {
    "time_limit_min": 15,
    "datasets": EMBEDDED["datasets"],
    "models": EMBEDDED["models"],
    "fixed": EMBEDDED["fixed"]
    | {"width_mult": 0.25, "steps_per_epoch": 8, "warmup_steps": 2, "profiled_steps": 3, "image_size": 32}
    | {"strategy": "ddp-ds"},
    "scenarios": {
        "network": {
            "question": "What does a network between two processes cost?",
            "fixed": {"devices": 2, "nodes": 2},
            "figures": ["step_breakdown"],
        },
        # Slurm has GPUs here, CUDA has none.
        "gpus": {
            "question": "What do GPUs gain?",
            "fixed": {"device": "cuda"},
            "vary": {"devices": [1, 8]},
            "figures": ["step_breakdown"],
        },
    },
}
# Small steps of several runs and scenarios in one job, since every job costs ten seconds.
TOGETHER = ("--group-components", "trace=3", "figures=2")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


@pytest.fixture(scope="module")
def finished(slurm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `snakemake --profile slurm` on small nodes, in a partition that allows an hour."""
    folder = project(tmp_path_factory.mktemp("finished") / "project", EXPERIMENT)
    done = snakemake(folder, *TOGETHER)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder


def test_every_stage_leaves_its_files_and_a_run_on_two_nodes_names_both(finished: Path) -> None:
    measures = pd.read_csv(finished / "results/scenarios/network/measures.csv")
    assert measures["outcome"].tolist() == ["completed"]
    assert (measures["iteration_time_s"] > 0).all()
    assert measures.notna().to_numpy().sum() > 50
    for suffix in ("png", "svg", "pdf", "csv"):
        assert (finished / f"results/figures/network/step_breakdown.{suffix}").stat().st_size > 0
    assert (finished / "results/report.html").stat().st_size > 0

    written = record(finished, ON_TWO_NODES)
    assert sorted(node.name for node in written.nodes) == [*SMALL]
    assert [node.ranks for node in written.nodes] == [(0,), (1,)]
    assert all(node.host.name and node.hardware.logical_cpus for node in written.nodes)
    assert [rank.node for rank in written.ranks] == [0, 1]
    phases = pd.read_parquet(finished / "results/runs" / ON_TWO_NODES / "activity/phases.parquet")
    steps = phases[phases["phase"] == "step"]
    assert steps.groupby("rank").size().to_dict() == dict.fromkeys(range(2), 3)
    assert steps["report"].nunique() == 2  # the traces of both nodes are read together


def test_runs_ask_for_whole_nodes_and_steps_for_what_a_small_partition_has(finished: Path) -> None:
    asked = asked_for(finished, ON_A_GPU).split()
    assert {"--gpus=1", "--nodes=1", "--cpus-per-task=1", "--exclusive", "--requeue"} <= set(asked)
    assert asked[asked.index("-t") + 1] == "25"  # the run's own limit is 15 minutes
    asked = asked_for(finished, ON_TWO_NODES).split()
    assert {"--nodes=2", "--ntasks=2", "--cpus-per-task=1", "--exclusive", "--no-kill"} <= set(asked)
    assert not any(flag.startswith(("--gpus", "--gres")) for flag in asked)
    steps = [line for line in (finished / "asked").read_text().splitlines() if "launch_run" not in line]
    assert len(steps) >= 3
    for line in steps:
        assert int(re.search(r"--mem (\d+)", line)[1]) <= 8000, line
        assert int(re.search(r"-t (\d+)", line)[1]) <= 60, line


def test_what_a_node_does_not_have_is_the_outcome_of_the_run_that_it_was_given(finished: Path) -> None:
    written = record(finished, ON_A_GPU)
    assert written.outcome == "failed"
    assert re.fullmatch(r"cannot run on \S+: needs a CUDA GPU, none found", describe_reason(written.reason))
    table = pd.read_csv(finished / "results/scenarios/gpus/runs.csv").set_index("run")["reason"]
    assert table[ON_A_GPU.replace("cuda1", "cuda8")] == "needs 8 devices, 4 found"


def test_doctor_has_slurm_judge_a_job_of_the_profile(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    found = {each.check: f"{each.verdict}: {each.found}" for each in slurm_checks(read_profile(Path("slurm")), True)}
    assert f"({len(SMALL)} nodes of 4 GPUs)" in found["Slurm partitions"]
    assert found["profile: job"].startswith("ok: Slurm would take one (--partition=")


def test_a_second_start_does_nothing_and_one_without_the_statement_of_the_cluster_stops(finished: Path) -> None:
    assert multicard(finished, "status").stdout.splitlines()[-1] == "1 completed, 1 failed, 1 cannot run here"
    again = snakemake(finished, *TOGETHER)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr
    # A --config on the command line takes the place of the profile's.
    stopped = snakemake(finished, "--config", "results=elsewhere")
    assert stopped.returncode != 0
    assert "jobs go to a cluster, but what its nodes offer is not stated" in stopped.stderr


def test_the_limits_of_nodes_and_what_a_search_tries_are_asked_of_slurm(slurm: Path, tmp_path: Path) -> None:
    values = {"command": [["ddp.py", "--batch-size", "4"], ["ddp.py", "--batch-size", "8"]]}
    scenario = {"question": "Which is faster?", "vary": values, "figures": ["step_breakdown"]}
    fixed = SHORT_SCRIPT | {"workload": "script", "launcher": "python", "profiler": "none"}
    experiment = {"time_limit_min": 15, "timing": "shared", "fixed": fixed, "scenarios": {"batches": scenario}}
    folder = project(tmp_path / "project", experiment, "scripts", submits=False)

    def asked() -> list[str]:
        file = folder / "asked"
        lines = file.read_text().splitlines()
        file.unlink()
        return list(dict.fromkeys(lines))

    done = snakemake(folder, "machine", f"results/machine/{FOR_SCRIPTS[1]}-cpu.json")
    assert done.returncode != 0
    of_any, of_named = sorted(asked(), key=lambda line: "--nodelist" in line)
    assert all("measure_machine" in line and "--exclusive" in line for line in (of_any, of_named))
    assert "--nodelist" not in of_any and f"--nodelist={FOR_SCRIPTS[1]}" in of_named

    done = multicard(folder, "tune", "--budget", "1h")
    assert done.returncode != 0 and (folder / "asked").exists(), done.stdout[-3000:] + done.stderr[-6000:]
    lines = asked()
    assert lines and all("rule_launch_run" in line and "-p scripts" in line for line in lines), lines
    assert len({re.search(r"rule_launch_run_wildcards_(\S+)", line)[1] for line in lines}) == 1  # no time is known yet

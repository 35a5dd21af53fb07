"""The pipeline on a real Slurm: `snakemake --profile slurm` on two nodes of four GPUs each, all on this machine."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from slurm_projects import (
    CONFIG,
    FOR_SCRIPTS,
    LIMIT_S,
    SMALL,
    asked_for,
    environment,
    project,
    record,
    slurm_cluster,
    snakemake,
)

from conftest import ROOT
from multicard.archive.matrix import Matrix
from multicard.core.reasons import describe_reason
from multicard.doctor.runs import on_nodes
from multicard.doctor.slurm import checks as slurm_checks
from multicard.experiment.load import read_experiment, read_profile
from observed_scripts import has_memory_and_phases
from script.equipment import SHORT as SHORT_SCRIPT
from script.equipment import losses as losses_printed

pytestmark = pytest.mark.slow

EMBEDDED: dict[str, Any] = yaml.safe_load((ROOT / "config/tour.yaml").read_text(encoding="utf-8"))
SHORT: dict[str, Any] = {"width_mult": 0.25, "steps_per_epoch": 8, "warmup_steps": 2, "profiled_steps": 3}
SUFFIX = "warmup2_profiled3{}_width0.25_batch16_epochs1_steps8_r1"
ON_ONE_NODE = f"vision_digits_32px_ddp-ds_cpu2_fp32_{SUFFIX.format('')}"
ON_TWO_NODES = f"vision_digits_32px_ddp-ds_cpu2_fp32_nodes2_{SUFFIX.format('')}"
EIGHT = f"vision_digits_32px_ddp_cpu8_fp32_nodes2_{SUFFIX.format('_profiler-none')}"
ON_A_GPU = f"vision_digits_32px_ddp-ds_cuda1_fp32_{SUFFIX.format('')}"
# What only a cluster can run; of the network, one machine the first run.
EXPERIMENT: dict[str, Any] = {
    "time_limit_min": 15,
    "datasets": EMBEDDED["datasets"],
    "models": EMBEDDED["models"],
    "fixed": EMBEDDED["fixed"] | SHORT | {"image_size": 32, "strategy": "ddp-ds"},
    "scenarios": {
        "network": {
            "question": "What does a network between two processes cost?",
            "fixed": {"devices": 2},
            "vary": {"nodes": [1, 2]},
            "figures": ["step_breakdown", "step_times"],
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
# What is only launched: a script by several launchers, and eight processes.
LAUNCHED: dict[str, Any] = {
    "time_limit_min": 15,
    "timing": "shared",
    "datasets": EMBEDDED["datasets"],
    "fixed": SHORT_SCRIPT | {"workload": "script", "command": ["ddp.py"]},
    "scenarios": {
        "scripts": {
            "question": "Do the ranks find each other?",
            "fixed": {"devices": 2},
            "vary": {"launcher": ["torchrun", "srun"], "nodes": [1, 2]},
            "figures": ["step_breakdown"],
        },
        "tasks": {
            "question": "Do two tasks on each of two nodes?",
            "fixed": {"devices": 4, "nodes": 2, "launcher": "srun"},
            "figures": ["step_breakdown"],
        },
        "many": {
            "question": "Do eight processes on two nodes train?",
            "fixed": EXPERIMENT["fixed"]
            | {"workload": "vision", "strategy": "ddp", "devices": 8, "nodes": 2, "profiler": "none"},
            "figures": ["step_breakdown"],
        },
    },
}


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


@pytest.fixture(scope="module")
def launched(slurm: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `multicard run --profile`, which has only launched its runs, on nodes for all at a time."""
    folder = project(tmp_path_factory.mktemp("launched") / "project", LAUNCHED, "scripts", digits)
    multicard = [str(Path(sys.prefix) / "bin/multicard"), "run", CONFIG, "--profile", "profiles/slurm"]
    options = ["--until", "launch_run", "--latency-wait", "10", "--max-status-checks-per-second", "1"]
    done = subprocess.run(
        [*multicard, "--", *options],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder


def losses(folder: Path, run: str) -> pd.DataFrame:
    """Loss of each step of each rank."""
    return pd.read_csv(folder / "results/runs" / run / "steps.csv")[["rank", "step", "loss"]]


def test_every_stage_leaves_its_files(finished: Path) -> None:
    for name, scenario in EXPERIMENT["scenarios"].items():
        measures = pd.read_csv(finished / f"results/scenarios/{name}/measures.csv")
        if name != "gpus":
            assert len(measures) == len(scenario["vary"].get("nodes", [1]))
            assert (measures["outcome"] == "completed").all(), measures["reason"]
            assert (measures["iteration_time_s"] > 0).all()
        for figure in scenario["figures"]:
            for suffix in ("png", "svg", "pdf", "csv"):
                assert (finished / f"results/figures/{name}/{figure}.{suffix}").stat().st_size > 0
    assert (finished / "results/report.html").stat().st_size > 0


def test_the_network_between_ranks_changes_no_loss_and_nothing_that_is_measured(finished: Path) -> None:
    measures = pd.read_csv(finished / "results/scenarios/network/measures.csv")
    assert measures["nodes"].tolist() == [1, 2]
    on_one, on_two = (losses(finished, run) for run in measures["run"])
    assert len(on_one) > 0
    pd.testing.assert_frame_equal(on_one, on_two, rtol=1e-5)
    of_one, of_two = (set(measures.columns[measures.iloc[row].notna()]) for row in (0, 1))
    assert of_one == of_two
    assert len(of_one) > 50


def test_a_run_on_two_nodes_names_both(finished: Path) -> None:
    written = record(finished, ON_TWO_NODES)
    assert sorted(node["name"] for node in written["nodes"]) == [*SMALL]
    assert [node["ranks"] for node in written["nodes"]] == [[0], [1]]
    assert all(node["host"]["name"] and node["hardware"]["logical_cpus"] for node in written["nodes"])
    assert [rank["node"] for rank in written["ranks"]] == [0, 1]
    assert "nodes" not in record(finished, ON_ONE_NODE)


def test_the_traces_of_two_nodes_are_read_together(finished: Path) -> None:
    phases = pd.read_parquet(finished / "results/runs" / ON_TWO_NODES / "activity/phases.parquet")
    steps = phases[phases["phase"] == "step"]
    assert steps.groupby("rank").size().to_dict() == dict.fromkeys(range(2), 3)
    assert steps["report"].nunique() == 2


def test_records_agree_with_their_traces(finished: Path) -> None:
    status = subprocess.run(
        [str(Path(sys.prefix) / "bin/multicard"), "status", "--config", CONFIG, "--profile", "slurm"],
        cwd=finished, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert status.stdout.splitlines()[-1] == "2 completed, 1 failed, 1 cannot run here"


def test_runs_ask_for_what_they_need_and_for_whole_nodes(finished: Path) -> None:
    asked = asked_for(finished, ON_A_GPU).split()
    for flag in ("--gpus=1", "--nodes=1", "--cpus-per-task=1", "--exclusive", "--requeue"):
        assert flag in asked
    assert asked[asked.index("-t") + 1] == "25"  # the run's own limit is 15 minutes
    asked = asked_for(finished, ON_TWO_NODES).split()
    for flag in ("--nodes=2", "--ntasks=2", "--cpus-per-task=1", "--exclusive", "--no-kill"):
        assert flag in asked
    assert not any(flag.startswith(("--gpus", "--gres")) for flag in asked)


def found_by_doctor(checks: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What `multicard doctor` finds, by check."""
    return {each["check"]: f"{each['verdict']}: {each['found']}" for each in checks}


def test_doctor_compares_every_request_with_the_partition(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [str(Path(sys.prefix) / "bin/multicard"), "doctor", "--json", "--config", CONFIG, "--profile", "slurm"],
        cwd=finished, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = found_by_doctor(json.loads(done.stdout)["checks"])
    assert found["profile: time"].startswith("ok: minutes asked for: launch_run 25, trace 20, figures 20, ")
    assert "Slurm refuses it" not in found["profile: memory"]
    # Another profile changes nothing else of what it finds.
    monkeypatch.chdir(finished)
    profile = read_profile(Path("slurm"))
    profile["set-resources"] = {"export_trace": {"runtime": 60}, "extract_activity": {"runtime": 60, "mem_mb": 16000}}
    matrix = Matrix.plan(read_experiment(Path(CONFIG), Path("slurm")))
    checks = slurm_checks(profile, demanded=True, fits=partial(on_nodes, matrix=matrix))
    found = found_by_doctor(asdict(check) for check in checks)
    stays = "error: trace asks for 120 min, its partition allows 60: the job would stay pending"
    assert found["profile: time"] == stays
    refused = "error: trace asks for up to 16000 MB of a node, which has 8192: Slurm refuses it"
    assert found["profile: memory"] == refused


def test_small_steps_ask_for_what_a_small_partition_has(finished: Path) -> None:
    steps = [line for line in (finished / "asked").read_text().splitlines() if "launch_run" not in line]
    assert len(steps) >= 3
    for line in steps:
        assert int(re.search(r"--mem (\d+)", line)[1]) <= 8000, line
        assert int(re.search(r"-t (\d+)", line)[1]) <= 60, line


def test_what_a_node_does_not_have_is_the_outcome_of_the_run_that_it_was_given(finished: Path) -> None:
    written = record(finished, ON_A_GPU)
    assert written["outcome"] == "failed"
    assert re.fullmatch(r"cannot run on \S+: needs a CUDA GPU, none found", describe_reason(written["reason"]))
    table = pd.read_csv(finished / "results/scenarios/gpus/runs.csv").set_index("run")["reason"]
    assert table[ON_A_GPU.replace("cuda1", "cuda8")] == "needs 8 devices, 4 found"


def test_a_second_start_does_nothing(finished: Path) -> None:
    again = snakemake(finished, *TOGETHER)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr


def test_a_lost_cluster_statement_stops_snakemake_with_one_line(finished: Path) -> None:
    # A --config on the command line takes the place of the profile's.
    stopped = snakemake(finished, "--config", "results=elsewhere")
    assert stopped.returncode != 0
    assert "jobs go to a cluster, but what its nodes offer is not stated" in stopped.stderr


def test_eight_processes_on_two_nodes_train(launched: Path) -> None:
    written = record(launched, EIGHT)
    assert written["outcome"] == "completed", written["reason"]
    assert [node["ranks"] for node in written["nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [rank["node"] for rank in written["ranks"]] == [0] * 4 + [1] * 4
    asked = asked_for(launched, EIGHT).split()
    assert "--cpus-per-task=4" in asked
    assert "--exclusive" not in asked
    of_ranks = losses(launched, EIGHT).pivot(index="step", columns="rank", values="loss")
    assert of_ranks.shape == (14, 8)  # eight steps; then the first of a pass, two to settle, and three profiled
    assert of_ranks.gt(0).all(axis=None)


def test_the_ranks_of_a_script_find_each_other_whatever_starts_them(launched: Path) -> None:
    runs = {}
    for path in (launched / "results/runs").glob("*/run.json"):
        written = json.loads(path.read_text())
        if written["run"] == EIGHT:
            continue
        assert written["outcome"] == "completed", written["reason"]
        p = written["parameters"]
        runs[p["launcher"], p["nodes"], p["devices"]] = path.parent
    assert runs.keys() == {
        ("torchrun", 1, 2), ("torchrun", 2, 2), ("srun", 1, 2), ("srun", 2, 2), ("srun", 2, 4)
    }  # fmt: skip
    printed = {}
    for name, run in runs.items():
        with (run / "steps.csv").open() as file:
            steps = list(csv.DictReader(file))
        for rank in "0123"[: name[2]]:
            of_rank = [step for step in steps if step["rank"] == rank]
            assert [step["window"] for step in of_rank[:6]] == ["warmup"] * 2 + ["measured"] * 4
            assert {step["samples"] for step in of_rank} == {"4"}
            has_memory_and_phases(of_rank[2:6])
        printed[name] = losses_printed((run / "log.txt").read_text())[:7]
    of_two = [losses for (_, _, devices), losses in printed.items() if devices == 2]
    assert len(of_two[0]) == 7
    assert all(losses == of_two[0] for losses in of_two)
    first, second = FOR_SCRIPTS
    for name, ranks in (
        (("torchrun", 2, 2), [[0], [1]]),
        (("srun", 2, 2), [[0], [1]]),
        (("srun", 2, 4), [[0, 1], [2, 3]]),
    ):
        nodes = record(launched, runs[name].name)["nodes"]
        assert [(node["name"], node["ranks"]) for node in nodes] == [(first, ranks[0]), (second, ranks[1])]
        assert all(node["host"]["name"] for node in nodes)
        traces = (runs[name] / "trace").glob("rank*")
        assert {int(re.findall(r"\d+", trace.name)[0]) for trace in traces} == {*range(name[2])}
    # Slurm's daemon started the ranks, not multicard: which CPU time is that of others is not known.
    assert record(launched, runs["srun", 1, 2].name)["conditions"] == [None]
    assert record(launched, runs["srun", 2, 4].name)["conditions"] == [None, None]
    assert record(launched, runs["torchrun", 1, 2].name)["conditions"][0]["others_cpu_s"] >= 0


def test_the_limits_of_any_node_and_of_a_named_one_are_asked_of_slurm(
    slurm: Path, digits: Path, tmp_path: Path
) -> None:
    scenario = {"question": "?", "fixed": {"device": "cpu"}, "figures": ["step_breakdown"]}
    folder = project(tmp_path / "project", {"scenarios": {"one": scenario}}, "scripts", digits, submits=False)
    done = snakemake(folder, "machine", f"results/machine/{FOR_SCRIPTS[1]}-cpu.json")
    assert done.returncode != 0
    of_any, of_named = sorted(
        {line for line in (folder / "asked").read_text().splitlines() if "measure_machine" in line},
        key=lambda line: "--nodelist" in line,
    )
    assert "--exclusive" in of_any and "--nodelist" not in of_any
    assert "--exclusive" in of_named and f"--nodelist={FOR_SCRIPTS[1]}" in of_named


def test_a_search_asks_slurm_for_what_it_tries(slurm: Path, tmp_path: Path) -> None:
    values = {"command": [["ddp.py", "--batch-size", "4"], ["ddp.py", "--batch-size", "8"]]}
    scenario = {"question": "Which is faster?", "vary": values, "figures": ["step_breakdown"]}
    fixed = SHORT_SCRIPT | {"workload": "script", "launcher": "python", "profiler": "none"}
    experiment = {"time_limit_min": 15, "timing": "shared", "fixed": fixed, "scenarios": {"batches": scenario}}
    folder = project(tmp_path / "project", experiment, "scripts", submits=False)
    multicard = [str(Path(sys.prefix) / "bin/multicard"), "tune", CONFIG, "--profile", "profiles/slurm"]
    done = subprocess.run(
        [*multicard, "--budget", "1h", "--parallel", "2"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout[-3000:] + done.stderr[-6000:]
    asked = (folder / "asked").read_text().splitlines()
    assert asked and all("rule_launch_run" in line and "-p scripts" in line for line in asked), asked
    assert len({re.search(r"--job-name (\S+)", line)[1] for line in asked}) == 1  # it knows no time before the first

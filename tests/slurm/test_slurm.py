"""The pipeline on a real Slurm: `snakemake --profile slurm` on two nodes of four GPUs each, all on this machine."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster
import pandas as pd
import pytest
import yaml

from conftest import ROOT, TINY
from multicard.core.reasons import describe_reason
from observed_scripts import has_memory_and_phases
from script.equipment import SHORT as SHORT_SCRIPT
from script.equipment import losses as losses_printed

pytestmark = pytest.mark.slow

CONFIG = "config/tiny.yaml"
LIMIT_S = 900
EMBEDDED: dict[str, Any] = yaml.safe_load((ROOT / "config/tour.yaml").read_text(encoding="utf-8"))
SHORT: dict[str, Any] = {"width_mult": 0.25, "steps_per_epoch": 8, "warmup_steps": 2, "profiled_steps": 3}
SUFFIX = "warmup2_profiled3{}_width0.25_batch16_epochs1_steps8_r1"
ON_ONE_NODE = f"vision_digits_32px_ddp-ds_cpu4_fp32_{SUFFIX.format('')}"
ON_TWO_NODES = f"vision_digits_32px_ddp-ds_cpu4_fp32_nodes2_{SUFFIX.format('')}"
EIGHT = f"vision_digits_32px_ddp_cpu8_fp32_nodes2_{SUFFIX.format('_profiler-none')}"
ON_A_GPU = f"vision_digits_32px_ddp-ds_cuda1_fp32_{SUFFIX.format('')}"
# Of the embedded experiment two scenarios, shorter, and what only a cluster can run.
EXPERIMENT: dict[str, Any] = {
    "time_limit_min": 15,
    "datasets": EMBEDDED["datasets"],
    "models": EMBEDDED["models"],
    "fixed": EMBEDDED["fixed"] | SHORT | {"image_size": 32, "strategy": "ddp-ds"},
    "scenarios": {
        "strategies": EMBEDDED["scenarios"]["strategies"]
        | {"vary": {"strategy": ["ddp-ds"], "devices": [4]}, "repeats": 1, "figures": ["step_breakdown", "step_times"]},
        "network": {
            "question": "What does a network between four processes cost?",
            "fixed": {"devices": 4},
            "vary": {"nodes": [1, 2]},
            "figures": ["step_breakdown"],
        },
        "many": {
            "question": "Do eight processes on two nodes train?",
            "fixed": {"strategy": "ddp", "nodes": 2, "profiler": "none"},
            "vary": {"devices": [8]},
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
# The nodes have for Python as many CPUs as for Slurm: a machine of two cores trains eight processes, slowly.
CPUS = "import os\nos.sched_getaffinity = lambda process: set(range(16))\n"
# Training that is to last until it is ended sleeps nine tenths of the time after its first epoch, for others' sake.
ENDLESS = 100_000
SLOWLY = """
import signal, sys, threading, time

def slow_down():
    functions = set()
    while "evaluate" not in functions:
        time.sleep(0.5)
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame:
            functions.add(frame.f_code.co_name)
            frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 1, 1)

if "multicard.workloads.vision.train" in sys.orig_argv:
    signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.9))
    threading.Thread(target=slow_down, daemon=True).start()
"""
# Small steps of several runs and scenarios in one job, since every job costs ten seconds.
TOGETHER = ("--group-components", "trace=3", "figures=5")
# What times and memory come to, which no two runs share.
DIFFERS = r"_s$|_s_|speedup|efficiency|memory|overhead|share|drift|trend|outlying|stationary|windows_differ|disturb"
ENDS = "warmup2_profiled3_profiler-none_width0.25_batch8_epochs100000_steps8_r1"
PREEMPTED, CANCELLED = (
    f"vision_digits_16px_ddp-ds_cpu1_fp32_{ENDS}",
    f"vision_digits_16px_ddp-ds_cpu1_fp32_seed1_{ENDS}",
)
REPEATED = (PREEMPTED, CANCELLED)
LOSES_A_NODE = f"vision_digits_16px_ddp-ds_cpu2_fp32_nodes2_{ENDS}"
ENDED: dict[str, Any] = {
    "time_limit_min": 2,  # a checkpoint takes more than 30 s
    "timing": "shared",
    "fixed": TINY | {"strategy": "ddp-ds", "epochs": ENDLESS, "profiler": "none"},
    "scenarios": {
        "preempted": {"question": "Is it repeated?", "fixed": {"devices": 1}, "figures": ["step_breakdown"]},
        "cancelled": {"question": "Is it repeated?", "fixed": {"seed": 1}, "figures": ["step_breakdown"]},
        "lost": {"question": "Does it end?", "fixed": {"devices": 2, "nodes": 2}, "figures": ["step_breakdown"]},
    },
}

OWN_SCRIPT: dict[str, Any] = {
    "time_limit_min": 5,
    "timing": "shared",
    "fixed": SHORT_SCRIPT | {"workload": "script", "command": ["ddp.py"], "devices": 2},
    "scenarios": {
        "scripts": {
            "question": "Do the ranks find each other?",
            "vary": {"launcher": ["torchrun", "srun"], "nodes": [1, 2]},
            "figures": ["step_breakdown"],
        }
    },
}

ONE_RUN = ENDED | {"scenarios": {"cancelled": ENDED["scenarios"]["cancelled"]}}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], None]]:
    """Starts a cluster of two nodes with four GPUs, 16 CPUs and so much memory (MB) each, in place of the last one."""
    folders: dict[int, Path] = {}  # by memory; the last one is up

    def started(memory_mb: int) -> None:
        if memory_mb in folders:
            return
        for folder in folders.values():
            cluster.down(folder)
        folders[memory_mb] = tmp_path_factory.mktemp("slurm")
        try:
            cluster.up(folders[memory_mb], nodes=2, gpus=4, cpus=16, memory_mb=memory_mb)
        except cluster.NoCluster as reason:
            pytest.skip(f"no Slurm: {reason}")

    yield started
    for folder in folders.values():
        cluster.down(folder)


@pytest.fixture
def large_nodes(start: Callable[[int], None]) -> None:
    """A cluster whose nodes have memory for several runs at a time."""
    start(64_000)


def project(folder: Path, experiment: dict[str, Any]) -> Path:
    """Copy the project and give it an experiment, and an sbatch that notes what it is asked for."""
    made = {".git", ".venv", ".snakemake", "results", "data", "__pycache__", ".pytest_cache", ".ruff_cache"}
    shutil.copytree(ROOT, folder, symlinks=True, ignore=lambda _, names: made & set(names))
    (folder / CONFIG).write_text(yaml.safe_dump(experiment, sort_keys=False))
    (folder / "cpus").mkdir()
    endless = experiment["fixed"].get("epochs") == ENDLESS
    (folder / "cpus/sitecustomize.py").write_text(CPUS + SLOWLY if endless else CPUS)
    sbatch = folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/asked"\nexec {shutil.which("sbatch")} "$@"\n')
    sbatch.chmod(0o755)
    return folder


def command(*arguments: str) -> list[str]:
    here = [str(Path(sys.prefix) / "bin" / "snakemake"), "--profile", "slurm", "--configfile", CONFIG]
    return [*here, "--latency-wait", "10", *arguments]


def environment(folder: Path) -> dict[str, str]:
    python_path = os.pathsep.join(filter(None, [f"{folder}/cpus", os.environ.get("PYTHONPATH")]))
    return os.environ | {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": python_path}


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def planned_runs(folder: Path) -> list[str]:
    """Runs that a dry run would start."""
    dry = snakemake(folder, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    return sorted(re.findall(r"^Job \d+: run (.+)$", dry.stdout + dry.stderr, re.M))


def record(folder: Path, run: str) -> dict[str, Any]:
    return json.loads((folder / "results/runs" / run / "run.json").read_text())


def asked_for(folder: Path, run: str) -> str:
    """What sbatch was asked for the run."""
    return next(line for line in (folder / "asked").read_text().splitlines() if f"_{run} " in line)


@pytest.fixture(scope="module")
def finished(start: Callable[[int], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after `snakemake --profile slurm` on small nodes, in a partition that allows an hour."""
    start(8192)
    folder = project(tmp_path_factory.mktemp("finished") / "project", EXPERIMENT)
    done = snakemake(folder, *TOGETHER)
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


def test_the_network_between_ranks_changes_no_loss(finished: Path) -> None:
    measures = pd.read_csv(finished / "results/scenarios/network/measures.csv")
    assert measures["nodes"].tolist() == [1, 2]
    on_one, on_two = (losses(finished, run) for run in measures["run"])
    assert len(on_one) > 0
    pd.testing.assert_frame_equal(on_one, on_two, rtol=1e-5)


def test_eight_processes_on_two_nodes_train(finished: Path) -> None:
    assert [node["ranks"] for node in record(finished, EIGHT)["nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    of_ranks = losses(finished, EIGHT).pivot(index="step", columns="rank", values="loss")
    assert of_ranks.shape == (12, 8)  # eight steps and, after them, a warm-up and three of the profiled window
    assert of_ranks.gt(0).all(axis=None)


def test_the_same_experiment_on_one_machine_gives_the_same(finished: Path, tmp_path: Path) -> None:
    scenario = EXPERIMENT["scenarios"]["strategies"]
    folder = project(tmp_path / "project", EXPERIMENT | {"scenarios": {"strategies": scenario}})
    tables = ["scenarios/strategies/measures.csv"]
    tables += [f"figures/strategies/{figure}.csv" for figure in scenario["figures"]]
    asked = ["results/scenarios/strategies/measures.csv", "results/figures/strategies"]  # figures come as a folder
    done = subprocess.run(
        [Path(sys.prefix) / "bin/snakemake", *asked, "--profile", "profiles/local", "--configfile", CONFIG],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    for table in tables:
        local, cluster_ = (pd.read_csv(place / "results" / table) for place in (folder, finished))
        assert len(local) == 1
        assert local.get("outcome", pd.Series(["completed"])).eq("completed").all(), local["reason"].to_list()
        # Times and memory are filled in where they are on one machine; all else is the same, but what else ran then.
        local, cluster_ = (table.drop(columns="disturbance", errors="ignore") for table in (local, cluster_))
        pd.testing.assert_frame_equal(local.isna(), cluster_.isna())
        same = [name for name in local if not re.search(DIFFERS, name)]
        assert len(same) > 1
        pd.testing.assert_frame_equal(local[same], cluster_[same], rtol=1e-5)
    pd.testing.assert_frame_equal(losses(folder, ON_ONE_NODE), losses(finished, ON_ONE_NODE), rtol=1e-5)


def test_a_run_on_two_nodes_names_both(finished: Path) -> None:
    written = record(finished, ON_TWO_NODES)
    assert sorted(node["name"] for node in written["nodes"]) == ["n1", "n2"]
    assert [node["ranks"] for node in written["nodes"]] == [[0, 1], [2, 3]]
    assert all(node["host"]["name"] and node["hardware"]["logical_cpus"] for node in written["nodes"])
    assert [rank["node"] for rank in written["ranks"]] == [0, 0, 1, 1]
    assert "nodes" not in record(finished, ON_ONE_NODE)


def test_the_traces_of_two_nodes_are_read_together(finished: Path) -> None:
    phases = pd.read_parquet(finished / "results/runs" / ON_TWO_NODES / "activity/phases.parquet")
    steps = phases[phases["phase"] == "step"]
    assert steps.groupby("rank").size().to_dict() == dict.fromkeys(range(4), 3)
    assert steps["report"].nunique() == 2


def test_records_agree_with_their_traces(finished: Path) -> None:
    status = subprocess.run(
        [str(Path(sys.prefix) / "bin/multicard"), "status", "--config", CONFIG, "--profile", "slurm"],
        cwd=finished, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert status.stdout.splitlines()[-1] == "3 completed, 1 failed, 1 cannot run here"


def test_runs_ask_for_what_they_need_and_for_whole_nodes(finished: Path) -> None:
    asked = asked_for(finished, ON_A_GPU).split()
    for flag in ("--gpus=1", "--nodes=1", "--cpus-per-task=1", "--exclusive", "--requeue"):
        assert flag in asked
    assert asked[asked.index("-t") + 1] == "25"  # the run's own limit is 15 minutes
    asked = asked_for(finished, ON_TWO_NODES).split()
    for flag in ("--nodes=2", "--ntasks=2", "--cpus-per-task=2", "--exclusive", "--no-kill"):
        assert flag in asked
    assert not any(flag.startswith(("--gpus", "--gres")) for flag in asked)


def doctor(folder: Path) -> dict[str, str]:
    """What `multicard doctor` finds, by check."""
    done = subprocess.run(
        [str(Path(sys.prefix) / "bin/multicard"), "doctor", "--json", "--config", CONFIG, "--profile", "slurm"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {each["check"]: f"{each['verdict']}: {each['found']}" for each in json.loads(done.stdout)["checks"]}


def test_doctor_compares_every_request_with_the_partition(finished: Path) -> None:
    found = doctor(finished)
    assert found["profile: time"].startswith("ok: minutes asked for: launch_run 25, trace 20, figures 20, ")
    assert "Slurm refuses it" not in found["profile: memory"]
    profile = finished / "profiles/slurm/config.yaml"
    fitting = profile.read_text()
    more = "set-resources: {export_trace: {runtime: 60}, extract_activity: {runtime: 60, mem_mb: 16000}}\n"
    profile.write_text(fitting + more)
    try:
        found = doctor(finished)
    finally:
        profile.write_text(fitting)
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


def running(folder: Path) -> dict[str, tuple[str, str]]:
    """Job id and node list of the runs of a project that Slurm runs, by the comment that tells the run."""
    lines = cluster.ask("squeue", "--noheader", "--states=running", "--format=%i %N %Z %k").splitlines()
    jobs = [line.split(maxsplit=3) for line in lines]
    return {comment: (job, nodes) for job, nodes, place, comment in jobs if place == str(folder)}


def trains(folder: Path, run: str) -> bool:
    log = folder / "results/runs" / run / "log.txt"
    return log.exists() and "step 8 of 8" in log.read_text()


def test_however_jobs_end_the_others_go_on_and_only_what_is_missing_runs_again(
    large_nodes: None, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", ENDED)
    profile = folder / "profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace("# memory_per_node_gb: 250", "memory_per_node_gb: 5"))
    comment = "rule_launch_run_wildcards_{}".format
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=said, stderr=said
        )
        try:
            cluster.wait_for(
                lambda: all(trains(folder, run) for run in (*REPEATED, LOSES_A_NODE)), "all runs to train", 90
            )
            jobs = running(folder)
            assert jobs[comment(LOSES_A_NODE)][1] == "n[1-2]"
            assert {jobs[comment(run)][1] for run in REPEATED} == {"n1"}  # shared with the first
            cluster.lose_node("n2")
            left = [folder / "results/runs" / run / "checkpoint.pt" for run in REPEATED]
            left += [folder / "results/runs" / LOSES_A_NODE / "run.json"]
            cluster.wait_for(
                lambda: all(file.exists() for file in left) and comment(LOSES_A_NODE) not in running(folder),
                "checkpoints, and the end of a job", 100,
            )  # fmt: skip
            subprocess.run(["scancel", jobs[comment(CANCELLED)][0]], check=True)
            take_the_node = ["srun", "--partition=urgent", "--nodelist=n1", "--exclusive", "--input=none", "true"]
            subprocess.run(take_the_node, check=True, timeout=90)
            preempted = jobs[comment(PREEMPTED)][0]
            assert f"{preempted} PREEMPTED" in cluster.ask("squeue", "--noheader", "--states=all", "--format=%i %T")
            queued = ("squeue", "--noheader", f"--jobs={preempted}", "--states=pending", "--format=%r")
            cluster.wait_for(lambda: "BeginTime" in cluster.ask(*queued), "the preempted job to be requeued", 60)
            # Slurm has a requeued job wait for two minutes.
            subprocess.run(["scontrol", "update", f"JobId={preempted}", "StartTime=now"], check=True)
            assert started.wait(timeout=LIMIT_S) == 0
        finally:
            started.kill()
            cluster.start_node("n2")
    assert "--exclusive" not in asked_for(folder, PREEMPTED)
    assert (tmp_path / "said").read_text().count("was preempted and is requeued") == 1

    lost = record(folder, LOSES_A_NODE)
    assert lost["outcome"] == "failed"
    said = describe_reason(lost["reason"])
    assert re.search(r"\b1 on n2", said), said
    assert [node["name"] for node in lost["nodes"]] == ["n1", "n2"]

    asked = (folder / "asked").read_text().splitlines()
    submitted = {run: [line for line in asked if f"_{run} " in line] for run in REPEATED}
    assert len(submitted[PREEMPTED]) == 1
    first, second = (int(re.search(r"--mem (\d+)", line)[1]) for line in submitted[CANCELLED])
    assert first < second == 5000 < 2 * first
    for run in REPEATED:
        assert "resuming after epoch" in (folder / "results/runs" / run / "log.txt").read_text()
        assert record(folder, run)["outcome"] == "timed_out"
        assert record(folder, run)["reason"] == {"code": "timed_out", "time_limit_s": 120}
    assert not list((folder / "results/runs").glob("*/.scratch-*"))
    assert planned_runs(folder) == []


def test_a_job_that_will_not_start_is_named_and_ctrl_c_says_what_it_waits_for(
    large_nodes: None, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", ONE_RUN)
    said = tmp_path / "said"
    too_long = ("--until", "launch_run", "--set-resources", "launch_run:runtime=61")
    with said.open("w") as out:
        started = subprocess.Popen(command(*too_long), cwd=folder, env=environment(folder), stdout=out, stderr=out)
        try:
            # Submitting takes a few seconds, a look at the queue comes every 30.
            cluster.wait_for(lambda: "will not start: PartitionTimeLimit" in said.read_text(), "the reason", 120)
            second = snakemake(folder, "--until", "launch_run")
            assert second.returncode != 0
            assert "--unlock" in second.stderr
            started.send_signal(signal.SIGINT)
            assert started.wait(timeout=190) != 0
        finally:
            started.kill()
    assert "until then this directory stays locked" in said.read_text()
    cluster.wait_for(lambda: not cluster.jobs(), "the job to be cancelled", 30)
    assert planned_runs(folder) == [CANCELLED]
    assert snakemake(folder, "--until", "launch_run", "--dry-run").returncode == 0


def test_a_pipeline_that_is_told_to_end_cancels_its_jobs_and_goes_on_when_started_again(
    large_nodes: None, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", ONE_RUN)
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            command("--until", "launch_run"), cwd=folder, env=environment(folder), stdout=said, stderr=said
        )
        try:
            cluster.wait_for(lambda: trains(folder, CANCELLED), "the run to train", 90)
            started.terminate()
            assert started.wait(timeout=90) != 0
        finally:
            started.kill()
    cluster.wait_for(lambda: not cluster.jobs(), "the job to end", 120)  # a cancelled one first tidies up
    assert not (folder / "results/runs" / CANCELLED / "run.json").exists()
    assert not list((folder / "results/runs").glob("*/.scratch-*"))
    assert planned_runs(folder) == [CANCELLED]


def test_the_ranks_of_a_script_find_each_other_whatever_starts_them(large_nodes: None, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", OWN_SCRIPT)
    multicard = [str(Path(sys.prefix) / "bin/multicard"), "run", CONFIG, "--profile", "profiles/slurm"]
    done = subprocess.run(
        [*multicard, "--", "--until", "launch_run", "--latency-wait", "10"],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    runs = {}
    for path in (folder / "results/runs").glob("*/run.json"):
        written = json.loads(path.read_text())
        assert written["outcome"] == "completed", written["reason"]
        runs[written["parameters"]["launcher"], written["parameters"]["nodes"]] = path.parent
    assert runs.keys() == {("torchrun", 1), ("torchrun", 2), ("srun", 1)}  # srun starts the ranks of one node
    printed = []
    for run in runs.values():
        with (run / "steps.csv").open() as file:
            steps = list(csv.DictReader(file))
        for rank in "01":
            of_rank = [step for step in steps if step["rank"] == rank]
            assert [step["window"] for step in of_rank[:6]] == ["warmup"] * 2 + ["measured"] * 4
            assert {step["samples"] for step in of_rank} == {"4"}
            has_memory_and_phases(of_rank[2:6])
        printed.append(losses_printed((run / "log.txt").read_text())[:7])
    assert len(printed[0]) == 7
    assert printed[0] == printed[1] == printed[2]
    on_two = record(folder, runs["torchrun", 2].name)
    assert [(node["name"], node["ranks"]) for node in on_two["nodes"]] == [("n1", [0]), ("n2", [1])]
    # Slurm's daemon started the ranks, not multicard: which CPU time is that of others is not known.
    assert record(folder, runs["srun", 1].name)["conditions"] == [None]
    assert record(folder, runs["torchrun", 1].name)["conditions"][0]["others_cpu_s"] >= 0

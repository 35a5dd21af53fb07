"""A whole experiment on emulated GPUs: Snakemake, Kineto traces, figures, claims, recommendations and the report."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from emulated_jobs import GPU_NAME, copy_project, run_program

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus
from multicard.core.files import read_json
from script.equipment import SCRIPTS

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

EXPERIMENT: dict[str, Any] = {
    "fixed": {"device": "cuda", "profiler": "kineto"},
    "datasets": {
        "digits": {"source": "digits", "limit": 200},
        "preferences": {"source": "shipped-text", "texts": "preferences"},
    },
    "models": {"tiny": {"architecture": "tiny"}},
    "scenarios": {
        "gpus": {
            "question": "What does a second GPU gain?",
            "fixed": TINY | {"device": "cuda", "strategy": "ddp-ds", "steps_per_epoch": 6},
            "vary": {"devices": [1, 2]},
            "figures": ["iteration_time", "speedup", "step_breakdown", "kernel_classes", "energy", "memory_transfers"],
        },
        "formats": {
            "question": "What does fp16 gain?",
            "fixed": TINY | {"device": "cuda", "strategy": "ddp-ds", "steps_per_epoch": 6},
            "vary": {"precision": ["fp32", "fp16"]},
            "figures": ["precision"],
        },
        "scripts": {
            "question": "What do three more GPUs gain a script of our own?",
            "fixed": {
                "workload": "script", "command": ["ddp.py"], "folder": str(SCRIPTS), "warmup_steps": 1, "steps": 3,
                "profiled_steps": 2,
            },
            "vary": {"devices": [1, 4]},
            "figures": ["speedup", "device_time", "collectives"],
        },
        "techniques": {
            "question": "What does tuning cost?",
            "fixed": {
                "workload": "llm", "dataset": "preferences", "batch_size": 1, "sequence_length": 64, "warmup_steps": 1,
                "steps": 3, "profiled_steps": 1,
            },
            "vary": {"technique": ["lora"]},
            "figures": ["step_breakdown"],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def results(emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the experiment, run in a copy of the project without the results that it ships."""
    project = tmp_path_factory.mktemp("experiment") / "project"
    copy_project(project)
    (project / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))
    done = run_program(emulated_gpus,
        "-m", "snakemake", "--directory", project, "--snakefile", project / "Snakefile", "--profile",
        project / "profiles" / "local", "--configfile", project / "experiment.yaml", gpus=4,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return project / "results"


def test_every_run_is_recorded_with_the_emulated_gpus_and_a_trace(results: Path) -> None:
    records = [read_json(path) for path in (results / "runs").glob("*/run.json")]
    assert len(records) == 6  # a run of fp32 on one GPU answers two questions
    for record in records:
        assert record["outcome"] == "completed", record["reason"]
        assert {gpu["name"] for gpu in record["hardware"]["gpus"]} == {GPU_NAME}
        assert record["profiler"]["trace_missing"] is None
        kernels = pd.read_parquet(results / "runs" / record["run"] / "activity" / "kernels.parquet")
        assert kernels["calls"].sum() > 0


@pytest.mark.parametrize(("pattern", "gpus"), [("vision_*_cuda2_*", 2), ("script_*_cuda4_*", 4)])
def test_the_gradients_of_several_gpus_are_reduced_by_nccl(pattern: str, gpus: int, results: Path) -> None:
    [folder] = (results / "runs").glob(pattern)
    collectives = pd.read_parquet(folder / "activity" / "collectives.parquet")
    assert collectives["rank"].nunique() == gpus


def test_the_samples_of_a_script_are_those_of_all_its_gpus(results: Path) -> None:
    found = pd.read_csv(results / "scenarios" / "scripts" / "measures.csv").set_index("devices").sort_index()
    assert found.index.tolist() == [1, 4]
    by_hand = 4 * found.index / found["iteration_time_s"]  # batches of 4 on each
    assert found["throughput_samples_per_s"].tolist() == pytest.approx(by_hand.tolist(), rel=1e-9)


def test_every_figure_is_drawn_and_says_that_it_is_synthetic(results: Path) -> None:
    for scenario, definition in EXPERIMENT["scenarios"].items():
        for figure in definition["figures"]:
            for suffix in ("png", "svg", "pdf"):
                assert (results / "figures" / scenario / f"{figure}.{suffix}").stat().st_size > 0
            table = results / "figures" / scenario / f"{figure}.csv"
            assert "synthetic" in table.read_text(), table


def test_no_claim_is_decided_by_emulated_gpus(results: Path) -> None:
    claims = pd.read_csv(results / "claims.csv")
    assert not claims.empty
    assert set(claims["verdict"]) <= {"not judged", "not measured here"}
    reasons = pd.read_csv(results / "claims_comparisons.csv")["not_judged_because"]
    assert not reasons.empty and set(reasons) == {"synthetic timings"}


def test_the_report_says_that_it_is_synthetic(results: Path) -> None:
    report = (results / "report.html").read_text()
    assert GPU_NAME in report
    assert report.count("Synthetic: some or all of these runs were generated, not measured.") == 4
    assert (results / "recommendations.md").stat().st_size > 0

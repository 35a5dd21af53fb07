"""A whole experiment on emulated GPUs by the GPU check: from runs to figures, claims, the report, and what is sent."""

import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from emulated_jobs import GPU_NAME, copy_project, run_program

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare, pytest.mark.torchtune]

VISION = TINY | {"device": "cuda", "strategy": "ddp-ds", "steps_per_epoch": 6}
OUT_OF_MEMORY = "out_of_memory"
EXPERIMENT: dict[str, Any] = {
    "results": "results",
    "fixed": {"device": "cuda", "profiler": "kineto"},
    "datasets": {
        "digits": {"source": "digits", "limit": 200},
        "preferences": {"source": "shipped-text", "texts": "preferences"},
    },
    "models": {"tiny": {"architecture": "tiny"}},
    "scenarios": {
        "gpus": {
            "question": "What does a second GPU gain?",
            "fixed": VISION | {"binding": "numa"},
            "vary": {"devices": [1, 2]},
            "figures": ["iteration_time", "speedup", "step_breakdown", "kernel_classes", "energy", "memory_transfers",
                        "device_time", "collectives"],
        },
        "techniques": {
            "question": "What does tuning cost?",
            "fixed": {
                "workload": "llm", "library": "torchtune", "dataset": "preferences", "batch_size": 1,
                "sequence_length": 64, "warmup_steps": 1, "steps": 3, "profiled_steps": 1,
            },
            "vary": {"technique": ["lora"]},
            "figures": ["step_breakdown"],
        },
        OUT_OF_MEMORY: {
            "question": "What if the last GPU lacks memory?",
            "fixed": VISION | {"devices": 2, "image_size": 224},
            "figures": ["step_breakdown"],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def results(emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the experiment, run in a copy of the project without the results that it ships."""
    project = tmp_path_factory.mktemp("experiment") / "project"
    copy_project(project, "tests/gpu")
    (project / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))
    # Its own configuration takes an hour here (docs/validation.md). Of the spared memory a context takes
    # 300 MiB.
    check = ["tests/gpu/check.py", "--config", "experiment.yaml", "--spared-mib", "330", "--no-tests"]
    done = run_program(emulated_gpus, *check, gpus=2, cwd=project)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert "4 runs, 4 to do" in done.stdout
    return project / "results"


def test_every_run_is_judged_packed_and_recorded_with_kernels_and_collectives_of_every_gpu(results: Path) -> None:
    table = pd.read_csv(results / "send" / "check.csv")
    expected = {name: OUT_OF_MEMORY if name == OUT_OF_MEMORY else "completed" for name in EXPERIMENT["scenarios"]}
    assert {*zip(table["scenario"], table["outcome"], strict=True)} == {*expected.items()}
    assert set(table["result"]) == {"passed"}
    on_two = table["run"].str.contains("_cuda2_") & (table["outcome"] == "completed")
    assert on_two.sum() == 1 and (table.loc[on_two, "communication_per_step"] > 0).all()
    assert GPU_NAME in (results / "send" / "check.md").read_text()
    with tarfile.open(results / "send" / "runs.tar.gz") as archive:
        assert len([name for name in archive.getnames() if name.endswith("run.json")]) == 4

    records = [read_run(path.parent) for path in (results / "runs").glob("*/run.json")]
    completed = [record for record in records if record.outcome == "completed"]
    assert len(completed) == 3
    for record in completed:
        assert {gpu.name for gpu in record.hardware.gpus} == {GPU_NAME}
        assert record.profiler.trace_missing is None
        kernels = pd.read_parquet(results / "runs" / record.run / "activity" / "kernels.parquet")
        assert kernels["calls"].sum() > 0
    [folder] = (results / "runs").glob("vision_*_16px_*_cuda2_*")
    collectives = pd.read_parquet(folder / "activity" / "collectives.parquet")
    assert collectives["rank"].nunique() == 2


def test_every_figure_is_drawn_and_says_that_it_is_synthetic(results: Path) -> None:
    for scenario, definition in EXPERIMENT["scenarios"].items():
        for figure in definition["figures"]:
            for suffix in ("png", "svg", "pdf"):
                assert (results / "figures" / scenario / f"{figure}.{suffix}").stat().st_size > 0
            table = results / "figures" / scenario / f"{figure}.csv"
            assert scenario == OUT_OF_MEMORY or "synthetic" in table.read_text(), table


def test_no_claim_is_decided_by_emulated_gpus_and_the_report_says_that_it_is_synthetic(results: Path) -> None:
    claims = pd.read_csv(results / "claims.csv")
    assert not claims.empty
    assert set(claims["verdict"]) <= {"not judged", "not measured here"}
    reasons = pd.read_csv(results / "claims_tests.csv")["not_judged_because"]
    assert not reasons.empty and "synthetic timings" in set(reasons)
    report = (results / "report.html").read_text()
    assert GPU_NAME in report
    assert report.count("Synthetic timings, from no real machine: all runs") == 2  # the scenarios with completed runs
    assert "All runs have synthetic timings" in report
    assert (results / "recommendations.md").stat().st_size > 0

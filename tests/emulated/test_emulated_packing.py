"""Packed sequences on an emulated GPU, on which torchtune computes their attention by another function."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from emulated_jobs import LLM, LLM_ON_CPU, Job, run_on_cpu, run_on_gpus

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus
from multicard.core.files import read_json
from multicard.core.reasons import describe_reason
from multicard.experiment.datasets import ShippedText
from multicard.experiment.models import Model
from multicard.workloads.llm.prepare_model import prepare_model
from multicard.workloads.llm.prepare_texts import prepare_texts

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PROGRAM = "same_numbers"  # the program of the workload, without random numbers that differ between devices
SMALL: dict[str, Any] = {
    "workload": "llm", "dataset": "grammar", "precision": "fp32", "batch_size": 2, "sequence_length": 128,
    "warmup_steps": 1, "steps": 2, "profiled_steps": 1, "learning_rate": 0.001, "save": "none", "packed": True,
}  # fmt: skip
STEPS = 6  # one to warm up, two measured, two that settle the profiler, one profiled
ALIKE_FOR = 2  # steps; later ones amplify that the two functions round differently


@pytest.fixture(scope="module")
def runs(emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories by device."""
    folder = tmp_path_factory.mktemp("packing")
    texts, tiny = folder / "texts", folder / "tiny"
    prepare_texts("grammar", ShippedText(source="shipped-text", texts="grammar"), texts, ROOT / "resources")
    prepare_model("tiny", Model(architecture="tiny"), tiny, ROOT / "resources")
    jobs = {
        device: Job(SMALL | {"device": device, "profiler": profiler}, texts, folder / device, tiny, PROGRAM)
        for device, profiler in (("cpu", "none"), ("cuda", "kineto"))
    }
    run_on_cpu([jobs["cpu"]], LLM_ON_CPU)
    # Kernels that Triton compiles compute nothing there: what is compiled runs as it was written.
    run_on_gpus(emulated_gpus, [jobs["cuda"]], LLM, gpus=1, compile="eager")
    return {device: job.folder for device, job in jobs.items()}


def losses(folder: Path) -> list[float]:
    record = read_json(folder / "run.json")
    log = (folder / "log.txt").read_text()
    assert record["outcome"] == "completed", f"{describe_reason(record['reason'])}\n{log[-3000:]}"
    return pd.read_csv(folder / "steps.csv")["loss"].tolist()


def test_losses_on_a_gpu_are_those_of_the_cpu(runs: dict[str, Path]) -> None:
    found, expected = (losses(runs[device]) for device in ("cuda", "cpu"))
    assert len(found) == len(expected) == STEPS
    assert found[:ALIKE_FOR] == pytest.approx(expected[:ALIKE_FOR], rel=1e-3)


def test_the_record_says_that_attention_was_compiled_on_the_gpu_alone(runs: dict[str, Path]) -> None:
    found = {device: read_json(folder / "run.json")["attention"] for device, folder in runs.items()}
    assert found == {
        "cuda": {"function": "flex_attention", "compiled": True},
        "cpu": {"function": "scaled_dot_product_attention", "compiled": False},
    }


def test_masks_are_made_outside_of_the_wait_for_data(runs: dict[str, Path]) -> None:
    phases = pd.read_parquet(runs["cuda"] / "activity" / "phases.parquet").set_index("phase")
    ranges = pd.read_parquet(runs["cuda"] / "activity" / "ranges.parquet").set_index("range")
    assert ranges.loc["attention_mask", "calls"] == 1
    assert ranges.loc["attention_mask", "total_s"] <= phases.loc["transfer", "duration_s"]

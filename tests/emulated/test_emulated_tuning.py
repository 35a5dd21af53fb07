"""Language models on emulated GPUs: every technique on two of them, LoRA on one too, with the CPU's losses."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from emulated_jobs import LLM, LLM_ON_CPU, Job, asked_for, run_on_cpu, run_on_gpus, steps_of

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus
from multicard.core.files import read_json
from multicard.experiment.datasets import ShippedText
from multicard.experiment.models import ARCHITECTURES, Model
from multicard.workloads.llm.memory_estimate import estimate_memory
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.prepare_model import prepare_model
from multicard.workloads.llm.prepare_texts import prepare_texts

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PROGRAM = "same_numbers"  # the program of the workload, without random numbers that differ between devices
SMALL: dict[str, Any] = {
    "workload": "llm", "device": "cpu", "dataset": "preferences", "precision": "fp32", "batch_size": 2,
    "sequence_length": 64, "warmup_steps": 1, "steps": 3, "profiled_steps": 1, "learning_rate": 0.001,
    "profiler": "none", "save": "none",
}  # fmt: skip
TECHNIQUES: dict[str, dict[str, Any]] = {
    "lora": {},
    "qlora": {"technique": "qlora"},
    "qat of adapters": {"technique": "qat"},
    "qat of weights": {"technique": "qat", "qat_of": "weights"},
    "dpo": {"technique": "dpo"},
    "full": {"technique": "full"},
}
RUNS = {"lora, 1": {}} | {f"{name}, 2": changes | {"devices": 2} for name, changes in TECHNIQUES.items()}
# What changes nothing that is computed, or less than the format rounds.
CHANGED = {
    "lora, 1": {"profiler": "kineto"},
    "full, 2": {"profiler": "kineto", "save": "drop"},
    "qlora, 2": {"activation_checkpointing": True},
    "dpo, 2": {"save": "drop"},
}
BF16 = "bf16"
# QAT rounds weights and activations to few levels, and a value that lies between two may go either way.
TOLERANCE = {"qat": 1e-2}


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Path]]:
    """Run directories by device and name."""
    folder, names = tmp_path_factory.mktemp("tuning"), asked_for(request)
    texts, tiny = folder / "texts", folder / "tiny"
    prepare_texts("preferences", ShippedText(source="shipped-text", texts="preferences"), texts, ROOT / "resources")
    prepare_model("tiny", Model(architecture="tiny"), tiny, ROOT / "resources")

    def job(device: str, name: str, changes: dict[str, Any]) -> Job:
        return Job(SMALL | changes | {"device": device}, texts, folder / device / name, tiny, PROGRAM)

    jobs = {"cpu": {name: job("cpu", name, RUNS[name]) for name in names}}
    jobs["cuda"] = {name: job("cuda", name, RUNS[name] | CHANGED.get(name, {})) for name in names}
    jobs["cuda"][BF16] = job("cuda", BF16, {"precision": "bf16"})
    run_on_cpu([*jobs["cpu"].values()], LLM_ON_CPU)
    run_on_gpus(emulated_gpus, [*jobs["cuda"].values()], LLM)
    return {device: {name: job.folder for name, job in of.items()} for device, of in jobs.items()}


@pytest.mark.parametrize("name", RUNS)
def test_the_losses_of_a_technique_on_gpus_are_those_of_the_cpu(name: str, runs: dict[str, dict[str, Path]]) -> None:
    found, expected = (steps_of(runs[device][name]) for device in ("cuda", "cpu"))
    columns = ["rank", "step", "window", "samples", "tokens", "padded_tokens"]
    assert found[columns].to_dict() == expected[columns].to_dict()
    tolerance = TOLERANCE.get(RUNS[name].get("technique", "lora"), 1e-3)
    assert found["loss"].tolist() == pytest.approx(expected["loss"].tolist(), rel=tolerance)


@pytest.mark.parametrize("name", RUNS)
def test_what_a_technique_holds_on_a_gpu_is_what_was_estimated(name: str, runs: dict[str, dict[str, Path]]) -> None:
    steps_of(runs["cuda"][name])
    p = LlmParameters(**(SMALL | RUNS[name] | CHANGED.get(name, {}) | {"device": "cuda"}))
    estimate, held = estimate_memory(p, ARCHITECTURES["tiny"]), read_json(runs["cuda"][name] / "measures.json")
    for part in ("weights", "adapters", "gradients", "optimizer"):
        assert held[f"{part}_bytes"] == getattr(estimate, part), part
    assert held["peak_memory_bytes"] > held["weights_bytes"]


@pytest.mark.parametrize("name", ["lora, 1"])
def test_bf16_tunes_to_about_the_losses_of_fp32(name: str, runs: dict[str, dict[str, Path]]) -> None:
    found, expected = steps_of(runs["cuda"][BF16]), steps_of(runs["cpu"][name])
    assert found["loss"].tolist() == pytest.approx(expected["loss"].tolist(), rel=0.05)


@pytest.mark.parametrize("name", [name for name, changes in CHANGED.items() if "profiler" in changes])
def test_a_trace_of_tuning_has_the_kernels_of_every_gpu(name: str, runs: dict[str, dict[str, Path]]) -> None:
    steps_of(runs["cuda"][name])
    kernels = pd.read_parquet(runs["cuda"][name] / "activity" / "kernels.parquet")
    assert kernels["calls"].sum() > 100 * RUNS[name].get("devices", 1)


@pytest.mark.parametrize("name", ["lora, 2"])
def test_energy_and_memory_of_every_rank_are_recorded(name: str, runs: dict[str, dict[str, Path]]) -> None:
    ranks = read_json(runs["cuda"][name] / "run.json")["ranks"]
    assert [len(rank["device_memory_used_bytes"]) for rank in ranks] == [1, 1]
    for rank in ranks:
        [meter] = rank["energy"]
        assert meter["reason"] is None and meter["energy_j"] >= 0

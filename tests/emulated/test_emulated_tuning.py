"""Language models on emulated GPUs as on the CPU: every technique on two, LoRA in bf16 on one, packed rows, and TRL."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from emulated_jobs import LLM, LLM_ON_CPU, Job, asked_for, run_on_cpu, run_on_gpus, steps_of

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run
from multicard.core.files import read_json
from multicard.programs.datasets import ShippedText
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.prepare_model import prepare_model
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.models import Model

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

PROGRAM = "same_numbers"  # the program of the workload, without random numbers that differ between devices
SMALL: dict[str, Any] = {
    "workload": "llm", "dataset": "preferences", "precision": "fp32", "batch_size": 2, "sequence_length": 64,
    "warmup_steps": 1, "steps": 2, "profiled_steps": 1, "learning_rate": 0.001, "profiler": "none",
}  # fmt: skip
ON_TWO = {"devices": 2}
# What trains, and what else a run on GPUs has: it changes nothing that is computed, or less than the format rounds.
BY_TORCHTUNE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lora, 1": ({}, {"profiler": "kineto", "precision": "bf16"}),
    "lora, 2": (ON_TWO, {}),
    "qlora, 2": (ON_TWO | {"technique": "qlora"}, {"activation_checkpointing": True}),
    "qat, 2": (ON_TWO | {"technique": "qat", "qat_of": "weights"}, {}),
    "dpo, 2": (ON_TWO | {"technique": "dpo"}, {}),
    "full, 2": (ON_TWO | {"technique": "full"}, {"profiler": "kineto"}),
    "packed, 1": ({"dataset": "grammar", "sequence_length": 128, "packed": True}, {"profiler": "kineto"}),
}
BY_TRL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trl lora, 2": (ON_TWO, {}),
    "trl full, 2": (ON_TWO | {"technique": "full"}, {"profiler": "kineto"}),
    "trl dpo, 2": (ON_TWO | {"technique": "dpo"}, {"activation_checkpointing": True}),
    "trl qat, 2": (ON_TWO | {"technique": "qat", "qat_of": "weights"}, {}),
}
RUNS = {name: ({"library": "torchtune"} | trains, beside) for name, (trains, beside) in BY_TORCHTUNE.items()} | BY_TRL
NAMES = [*(pytest.param(name, marks=pytest.mark.torchtune) for name in BY_TORCHTUNE), *BY_TRL]
# QAT rounds weights and activations to few levels, and a value that lies between two may go either way. Packed rows
# have their attention computed by another function, whose rounding later steps amplify.
TOLERANCE = {"lora, 1": 5e-2, "qat, 2": 1e-2, "trl qat, 2": 1e-2}
ALIKE_FOR = {"packed, 1": 2}

Runs = dict[str, dict[str, Path]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run directories by device and name."""
    folder, names = tmp_path_factory.mktemp("tuning"), asked_for(request)
    tiny = folder / "tiny"
    for texts in ("preferences", "grammar"):
        prepare_texts(texts, ShippedText(source="shipped-text", texts=texts), folder / texts, ROOT / "resources")
    prepare_model("tiny", Model(architecture="tiny"), tiny, ROOT / "resources")

    def job(device: str, name: str) -> Job:
        trains, beside = RUNS[name]
        stated = SMALL | trains | (beside if device == "cuda" else {}) | {"device": device}
        return Job(stated, folder / stated["dataset"], folder / device / name, tiny, PROGRAM)

    jobs = {device: {name: job(device, name) for name in names} for device in ("cpu", "cuda")}
    run_on_cpu([*jobs["cpu"].values()], LLM_ON_CPU)
    # Kernels that Triton compiles compute nothing there: what is compiled runs as it was written.
    run_on_gpus(emulated_gpus, [*jobs["cuda"].values()], LLM, compile="eager")
    return {device: {name: job.folder for name, job in of.items()} for device, of in jobs.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_technique_learns_on_gpus_what_it_learns_on_the_cpu_in_the_memory_that_was_estimated(
    name: str, runs: Runs
) -> None:
    folder, p = runs["cuda"][name], LlmParameters(**SMALL | RUNS[name][0] | RUNS[name][1] | {"device": "cuda"})
    # On the CPU there is no profiler, and so no step after the measured ones.
    last = p.warmup_steps + p.steps
    found, expected = (steps_of(runs[device][name], last) for device in ("cuda", "cpu"))
    columns = ["rank", "step", "window", "samples", "tokens", "padded_tokens"]
    assert found[columns].to_dict() == expected[columns].to_dict()
    alike = found["step"] <= ALIKE_FOR.get(name, len(found))
    assert found["loss"][alike].tolist() == pytest.approx(
        expected["loss"][alike].tolist(), rel=TOLERANCE.get(name, 1e-3)
    )

    held = read_json(folder / "measures.json")
    # The peak by TRL is not estimated.
    most = held["peak_memory_bytes"] if p.library == "trl" else held["estimated_memory_bytes"] * 1.25
    assert held["weights_bytes"] < held["peak_memory_bytes"] <= most

    ranks = read_run(folder).ranks
    assert [len(rank.device_memory_used_bytes) for rank in ranks] == [1] * p.devices
    for rank in ranks:
        [meter] = rank.energy
        assert meter.reason is None and meter.energy_j >= 0
    if p.profiler == "kineto":
        kernels = pd.read_parquet(folder / "activity" / "kernels.parquet")
        assert kernels["calls"].sum() > 100 * p.devices

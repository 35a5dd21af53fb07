"""Scripts as users of frameworks write them, unchanged and in an environment without multicard: what is seen of each.

The numbers of samples are counted by hand: batch size of a rank times the batches of one optimizer step.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from multicard.experiment.models import Model
from multicard.record.binding import bound
from multicard.workloads.llm.prepare_model import prepare_model
from multicard.workloads.script.launchers.mpirun import AS_ROOT
from observed_scripts import has_memory_and_phases
from script.equipment import CASES, DEEPSPEED, Script, every_step_is_seen, losses

pytestmark = pytest.mark.slow

Runs = Callable[[str], Script]
COMPILES = "torch.compile, python"
# Each launcher and each framework is in one of the other cases or on emulated GPUs (tests/emulated).
RARE = (
    "DDP, torchrun", "FSDP1, torchrun", "Lightning, torchrun", "Transformers, torchrun", "Accelerate, accelerate",
    "DeepSpeed with ZeRO 2, deepspeed",
)  # fmt: skip
# Of these the losses are compared every day: a way each by which the observer gets at the steps.
COMPARED = (
    "DDP with gradient accumulation, torchrun", "FSDP2, torchrun", COMPILES, "Lightning, command",
    "Transformers, accelerate",
)  # fmt: skip
VECTORS = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}  # elsewhere it makes plain C++, to be fast


def skip_without(launcher: str) -> None:
    """Skip the test where a launcher is not here that no package for development brings."""
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (envs/install-mpi.sh)")
    if launcher == "deepspeed" and not (DEEPSPEED / "ready").exists():
        pytest.skip("needs DeepSpeed (make .venv/deepspeed/ready)")


@pytest.fixture(scope="module")
def unobserved() -> dict[str, list[str]]:
    """Losses that were printed where nothing observes, by what was trained."""
    return {}


@pytest.fixture(scope="module")
def run_of(user_python: str, lean_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs each case once, by its name."""

    @cache
    def run(name: str) -> Script:
        case = CASES[name]
        skip_without(case.launcher)
        python = lean_python if case.lean else user_python
        return Script(
            tmp_path_factory.mktemp("case") / "run",
            os.environ | (VECTORS if name == COMPILES else {}),
            command=tuple(case.command.split()),
            python=str(DEEPSPEED / "bin" / "python") if case.launcher == "deepspeed" else python,
            launcher=case.launcher,
            devices=case.devices,
            steps=case.steps,
        ).completed()

    with pytest.MonkeyPatch.context() as patch:
        for name in AS_ROOT:
            patch.setenv(name, "1")
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes that all import PyTorch
        yield run


def cases(rare: Callable[[str], bool]) -> list[Any]:
    """The names of the cases as parameters of a test."""
    return [pytest.param(name, marks=[pytest.mark.rare] if rare(name) else []) for name in CASES]


@pytest.mark.parametrize("name", cases(lambda name: name in RARE))
def test_every_step_of_every_rank_is_seen(name: str, run_of: Runs) -> None:
    run = run_of(name)
    every_step_is_seen(run, CASES[name])
    assert {rank["binding"]["cpus"] for rank in run.record["ranks"]} == {bound()["cpus"]}


@pytest.mark.parametrize("name", cases(lambda name: name not in COMPARED))
def test_the_losses_stay(name: str, run_of: Runs, unobserved: dict[str, list[str]]) -> None:
    case, run = CASES[name], run_of(name)
    same = case.trains or f"{case.command} by {case.launcher}"
    if same not in unobserved:
        unobserved[same] = losses(run.log_without_observer() if name == COMPILES else run.log_of_plain_ranks())
    printed = losses(run.log)
    assert printed == unobserved[same][: len(printed)]


@pytest.mark.parametrize("name", ["Lightning, python", "Transformers, python"])
def test_evaluation_between_passes_is_no_part_of_a_step(name: str, run_of: Runs) -> None:
    # 256 samples are 8 batches of 32, and each pass ends with an evaluation on all samples.
    run = run_of(name)
    assert [step["epoch"] for step in run.steps[:10]] == ["1"] * 7 + ["2"] * 3
    assert {int(step["samples"]) for step in run.steps} == {32}  # also where a loader of Accelerate has a batch at hand


def test_torchtune_by_its_own_command(user_python: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    prepare_model("tiny", Model(architecture="tiny"), model, ROOT / "resources")
    run = Script(
        tmp_path / "run",
        command=(
            *("-m", "torchtune._cli.tune", "run", "lora_finetune_single_device", "--config", "tune_lora.yaml"),
            *(f"model_dir={model}", f"data_files={ROOT / 'resources' / 'text' / 'instructions.jsonl'}"),
            "output_dir={run_dir}/out",
        ),
        python=user_python,
        launcher="command",
    ).completed()
    has_memory_and_phases(run.steps[2:6])
    assert {step["samples"] for step in run.steps} == {"8"}  # a batch of 4, two of them in a step
    [rank] = run.record["ranks"]
    assert rank["observed"]["optimizers"] == ["AdamW"]
    assert [loader["kind"] for loader in rank["observed"]["loaders"]] == ["StatefulDataLoader"]
    # The first update ends no step, and the loss of the last is not printed before the script is ended.
    printed = losses(run.log)
    assert len(printed) == len(run.steps)
    assert printed == losses(run.log_of_plain_ranks())[: len(printed)]

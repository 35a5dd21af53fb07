"""Scripts as users of frameworks write them, unchanged and in an environment without multicard: what is seen of each.

The numbers of samples are counted by hand: batch size of a rank times the batches of one optimizer step.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from multicard.observe.record.binding import bound
from observed_scripts import has_memory_and_phases
from script.equipment import CASES, DEEPSPEED, ON_GPUS, Script, every_step_is_seen, losses, skip_unless, torchtune

COMPILES = "torch.compile, python"
FSDP2 = "FSDP2, torchrun"
# Every day the frameworks that most use, each by another launcher. DDP by torchrun is there on emulated GPUs
# (tests/emulated/test_emulated_scripts.py) and in tests/launch/test_script_jobs.py.
DAILY = ("Lightning, command", "Transformers, python", "Accelerate, accelerate")
# Of these the losses are compared: a way each by which the observer gets at the steps.
COMPARED = (
    "DDP with gradient accumulation, torchrun", FSDP2, COMPILES, "Lightning, command",
    "Transformers, accelerate", "GAN, python", "FSDP1, torchrun",
)  # fmt: skip
EVALUATED = ("Lightning, python", "Transformers, python")
VECTORS = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}  # elsewhere it makes plain C++, to be fast


def skip_without(name: str, launcher: str, python: str) -> None:
    """Skip the test of a case whose launcher is not here, or that an older PyTorch does not have."""
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (envs/install-mpi.sh)")
    if launcher == "deepspeed" and not (DEEPSPEED / "ready").exists():
        pytest.skip("needs DeepSpeed (make .venv/deepspeed/ready)")
    if name == FSDP2:
        skip_unless(python, "from torch.distributed.fsdp import fully_shard")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.rare]) for name in CASES]
)
def test_every_step_of_every_rank_is_seen_and_the_losses_stay(
    name: str, user_python: str, lean_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    python = lean_python if case.lean else user_python
    skip_without(name, case.launcher, python)
    for variable in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes that all import PyTorch
    run = Script(
        tmp_path / "run",
        os.environ | (VECTORS if name == COMPILES else {}),
        command=tuple(case.command.split()),
        python=str(DEEPSPEED / "bin" / "python") if case.launcher == "deepspeed" else python,
        launcher=case.launcher,
        devices=case.devices,
        steps=case.steps,
    ).completed()
    every_step_is_seen(run, case)
    assert {rank.binding.cpus for rank in run.record.ranks} == {bound().cpus}
    if name in COMPARED:
        printed = losses(run.log)
        unobserved = losses(run.log_without_observer())
        assert printed == unobserved[: len(printed)]
    if name in EVALUATED:
        # 256 samples are 8 batches of 32, and each pass ends with an evaluation on all samples.
        assert [step["epoch"] for step in run.steps[:10]] == ["1"] * 7 + ["2"] * 3
        assert {int(step["samples"]) for step in run.steps} == {32}  # also where a loader has a batch at hand


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.torchtune
def test_torchtune_by_its_own_command(user_python: str, tmp_path: Path) -> None:
    command = torchtune(tmp_path, "lora_finetune_single_device")
    run = Script(tmp_path / "run", command=command, python=user_python, launcher="command").completed()
    has_memory_and_phases(run.steps[2:6])
    assert {step["samples"] for step in run.steps} == {"8"}  # a batch of 4, two of them in a step
    [rank] = run.record.ranks
    assert rank.observed.optimizers == ("AdamW",)
    assert [loader.kind for loader in rank.observed.loaders] == ["StatefulDataLoader"]
    # The first update ends no step, and the loss of the last is not printed before the script is ended.
    assert len(losses(run.log)) == len(run.steps)


def test_every_case_is_a_row_with_what_is_seen_of_it_and_where_it_was_tried() -> None:
    page = (ROOT / "docs" / "own-training.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| Framework \| Launcher .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    rows = {f"{framework}, {launcher}": others for framework, launcher, *others in cells}
    for name, case in CASES.items():
        where = ", ".join(["CPU", *(["emulated GPU"] if name in ON_GPUS else [])])
        assert rows[name] == [str(case.devices), where, "all"], name

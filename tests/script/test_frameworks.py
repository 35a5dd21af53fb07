"""Scripts as users of frameworks write them, unchanged and in an environment without multicard: what is seen of each.

The numbers of samples are counted by hand: batch size of a rank times the batches of one optimizer step.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import ROOT
from multicard.experiment.models import Model
from multicard.workloads.llm.prepare_model import prepare_model
from observed_scripts import has_memory_and_phases
from script.equipment import Script, losses

pytestmark = pytest.mark.slow


class Case(NamedTuple):
    """A script, how it is started, and what is known of its steps.

    Attributes
    ----------
    samples
        Of a rank in one step.
    profiled
        Steps of the profiled window: two as asked for, or four times as many as a worker of the loader reads ahead.
    prints_after
        Whether it prints a loss after the update, where the last one is not reached.
    """

    command: str
    launcher: str
    devices: int
    samples: int
    optimizer: str
    profiled: int = 2
    prints_after: bool = False


LIGHTNING, TRANSFORMERS = "lightning_trainer.py --out {run_dir}", "hf_trainer.py --out {run_dir}"
# Framework and launcher, as in the table of docs/own-training-frameworks.md.
CASES = {
    "PyTorch, python": Case("ddp.py", "python", 1, 4, "SGD"),
    "DDP, torchrun": Case("ddp.py --workers 1", "torchrun", 2, 4, "SGD", profiled=8),
    "DDP with gradient accumulation, torchrun": Case("ddp.py --accumulate 4", "torchrun", 2, 16, "SGD"),
    "DDP by mp.spawn, command": Case("spawn.py --devices {devices}", "command", 2, 4, "SGD"),
    "FSDP2, torchrun": Case("fsdp2.py", "torchrun", 2, 4, "AdamW"),
    "torch.compile, python": Case("ddp.py --compile", "python", 1, 4, "SGD"),
    "GAN, python": Case("gan.py", "python", 1, 8, "Adam"),
    "Lightning, python": Case(LIGHTNING, "python", 1, 4, "Adam"),
    "Lightning, command": Case(f"{LIGHTNING} --devices {{devices}}", "command", 2, 4, "Adam"),
    "Lightning, torchrun": Case(f"{LIGHTNING} --devices {{devices}}", "torchrun", 2, 4, "Adam"),
    "Transformers, python": Case(TRANSFORMERS, "python", 1, 4, "AdamW", prints_after=True),
    "Transformers, torchrun": Case(TRANSFORMERS, "torchrun", 2, 4, "AdamW", prints_after=True),
    "Transformers, accelerate": Case(f"{TRANSFORMERS} --accumulate 2", "accelerate", 2, 8, "AdamW", prints_after=True),
    "Accelerate, python": Case("accelerate_loop.py --accumulate 2", "python", 1, 8, "AdamW"),
    "Accelerate, accelerate": Case("accelerate_loop.py", "accelerate", 2, 4, "AdamW"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_every_step_of_every_rank_is_seen_and_the_losses_stay(case: Case, user_python: str, tmp_path: Path) -> None:
    run = Script(
        tmp_path / "run",
        command=tuple(case.command.split()),
        python=user_python,
        launcher=case.launcher,
        devices=case.devices,
    )

    printed = losses(run.log)
    made = len(printed) + case.prints_after - 1  # the first update ends no step
    assert len(run.steps) == case.devices * made
    for rank in range(case.devices):
        steps = run.of_rank(rank)
        assert [int(step["step"]) for step in steps] == list(range(1, made + 1))
        windows = [step["window"] for step in steps]
        assert windows[:6] == ["warmup"] * 2 + ["measured"] * 4
        assert windows[-case.profiled - 1 :] in (
            ["measured"] + ["profiled"] * case.profiled,
            ["warmup"] + ["profiled"] * case.profiled,
        )
        assert {int(step["samples"]) for step in steps[2:6]} == {case.samples}
        has_memory_and_phases(steps[2:6])
    assert run.record["exit_code"] == 0
    assert "Traceback" not in run.log
    for rank in run.record["ranks"]:
        observed = rank["observed"]
        assert observed["optimizers"] == [case.optimizer]
        assert observed["samples_from"] == "loader"
        assert [loader["distinct"] for loader in observed["loaders"]] == [True]
        assert not rank["ignored_exit"]
    assert printed == losses(run.log_without_observer())[: len(printed)]


@pytest.mark.parametrize("script", [LIGHTNING, TRANSFORMERS])
def test_evaluation_between_passes_is_no_part_of_a_step(script: str, user_python: str, tmp_path: Path) -> None:
    # 256 samples are 8 batches of 32, and each pass ends with an evaluation on all samples.
    run = Script(
        tmp_path / "run", command=(*script.split(), "--batch-size", "32"), python=user_python, steps=8, profiler="none"
    )
    assert [step["epoch"] for step in run.steps[:10]] == ["1"] * 7 + ["2"] * 3
    drawn = [int(step["samples"]) for step in run.steps[:10]]
    if script == LIGHTNING:
        assert drawn == [32] * 10
    else:  # Accelerate's loaders read one batch ahead within a pass
        assert drawn == [32] * 6 + [0, 64] + [32] * 2


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
    )
    has_memory_and_phases(run.steps[2:6])
    assert {step["samples"] for step in run.steps} == {"8"}  # a batch of 4, two of them in a step
    [rank] = run.record["ranks"]
    assert rank["observed"]["optimizers"] == ["AdamW"]
    assert [loader["kind"] for loader in rank["observed"]["loaders"]] == ["StatefulDataLoader"]
    # The first update ends no step, and the loss of the last is not printed before the script is ended.
    printed = losses(run.log)
    assert len(printed) == len(run.steps)
    assert printed == losses(run.log_without_observer())[: len(printed)]

"""Tuning by torchtune's real recipes on CPU processes: what is learned, recorded and saved."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from multicard.config.read_run import read_run
from multicard.core.layout import PHASES
from multicard.core.reasons import describe_reason
from multicard.programs.datasets import TextFile
from multicard.programs.llm.libraries.torchtune import RECIPES
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.provenance import ModelProvenance, TextProvenance, read_unchanged
from multicard.results.measure import measure_run
from prepared_sets import make_model_provenance, make_text_provenance
from tuning_runs import ALL_STEPS, RESOURCES, SCHEDULED, SMALL, steps_of

pytestmark = [pytest.mark.slow, pytest.mark.torchtune]

QLORA, QAT = {"technique": "qlora", "devices": 2}, {"technique": "qat", "devices": 2}
DPO = {"technique": "dpo", "devices": 2, "gradient_accumulation_steps": 2}
# Every technique on two devices. Daily are adapters on one and on two devices, and pairs of answers, whose recipe is
# the most unlike the others. test_memory_estimate.py makes steps of all techniques every day, and emulated GPUs have
# all on one device, with references on the CPU (tests/emulated/test_emulated_tuning.py).
DAILY = [
    {"technique": "lora", "devices": 1},
    {"technique": "lora", "devices": 2},
    DPO,
]
RARE = [QLORA, QAT, QAT | {"qat_of": "weights"}, {"technique": "full", "devices": 2}]
RUNS = [*DAILY, *(pytest.param(changes, marks=pytest.mark.rare) for changes in RARE)]
LOSS = re.compile(r"loss:([0-9.e-]+)")


def worded(changes: dict[str, Any]) -> str:
    return "-".join(map(str, changes.values()))


@pytest.mark.parametrize("changes", RUNS, ids=worded)
def test_every_technique_learns_and_is_recorded(tune: Callable[..., Path], changes: dict[str, Any]) -> None:
    folder, devices = tune(**changes), changes["devices"]
    steps = steps_of(folder)
    assert len(steps) == ALL_STEPS * devices
    assert sorted(steps["rank"].unique()) == list(range(devices))
    assert steps["window"].value_counts().to_dict() == {"warmup": 2 * devices, "measured": 8 * devices}
    assert (steps["samples"] == SMALL["batch_size"] * changes.get("gradient_accumulation_steps", 1)).all()
    found = measure_run(folder)
    assert found["loss_at_end"] < found["loss_at_start"]
    coverage = steps[[f"{name}_s" for name in PHASES]].sum(axis=1) / steps["duration_s"]
    assert 0.9 < coverage.median() <= 1
    assert steps[["data_s", "forward_s", "backward_s", "optimizer_s", "padded_tokens"]].notna().all(axis=None)
    rewards = steps[["reward_chosen", "reward_rejected", "reward_accuracy"]]
    assert (rewards.notna() if changes["technique"] == "dpo" else rewards.isna()).all(axis=None)


# By torchtune's list of recipes (`tune ls`).
@pytest.mark.parametrize(
    ("changes", "recipe"),
    [
        ({"technique": "lora"}, "lora_finetune_single_device"),
        ({"technique": "qlora", "devices": 2}, "lora_finetune_distributed"),
        ({"technique": "qat"}, "qat_lora_finetune_distributed"),
        ({"technique": "qat", "qat_of": "weights"}, "qat_distributed"),
        ({"technique": "dpo", "devices": 2}, "lora_dpo_distributed"),
        ({"technique": "full"}, "full_finetune_single_device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_technique_runs_its_own_recipe(changes: dict[str, Any], recipe: str) -> None:
    p = LlmParameters(library="torchtune", **changes)
    assert RECIPES[p.technique].full_name(p) == recipe


@pytest.mark.parametrize(
    "technique", ["lora", *(pytest.param(each, marks=pytest.mark.rare) for each in ("qlora", "dpo", "full"))]
)
def test_losses_are_those_of_the_untouched_recipe(
    tune: Callable[..., Path], tiny: Path, texts: Callable[[str], Path], tmp_path: Path, technique: str
) -> None:
    from omegaconf import OmegaConf

    from multicard.programs.llm.torchtune_backend import recipe_settings

    data, p = texts("preferences"), LlmParameters(**SMALL, technique=technique)
    model, sample_texts = read_unchanged(tiny, ModelProvenance), read_unchanged(data, TextProvenance)
    settings = recipe_settings(p, model, sample_texts, data / "train.jsonl", tmp_path / "out")
    # Torchtune's own components, for as long as the schedule of our job; so the same learning rates.
    stock = {
        "dataset": settings["dataset"]["data"],
        "loss": settings["loss"]["loss"],
        "optimizer": settings["optimizer"] | {"_component_": "torch.optim.AdamW"},
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": p.warmup_steps,
        },
        "checkpointer": settings["checkpointer"] | {"_component_": "torchtune.training.FullModelHFCheckpointer"},
        "epochs": 1,
        "max_steps_per_epoch": SCHEDULED,
    }
    OmegaConf.save(OmegaConf.create(settings | stock), tmp_path / "stock.yaml")
    command = [sys.executable, "-c", "from torchtune._cli.tune import main; main()", "run"]
    command += [RECIPES[technique].full_name(p), "--config", tmp_path / "stock.yaml"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "TIKTOKEN_CACHE_DIR": ""}
    done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    ours = steps_of(tune(technique=technique, devices=1))["loss"].tolist()
    theirs = [float(loss) for loss in LOSS.findall((tmp_path / "out" / "losses.txt").read_text())]
    assert (len(ours), len(theirs)) == (ALL_STEPS, SCHEDULED)
    assert ours == pytest.approx(theirs[:ALL_STEPS], rel=1e-6)


def test_rewards_of_dpo_prefer_the_chosen_answers_more_and_more(tune: Callable[..., Path]) -> None:
    steps = steps_of(tune(**DPO)).groupby("step")[["reward_chosen", "reward_rejected", "reward_accuracy"]].mean()
    margins = steps["reward_chosen"] - steps["reward_rejected"]
    # Before the first update policy and reference are the same model.
    assert (steps.loc[1] == 0).all()
    assert margins.tail(3).mean() > 0
    assert steps["reward_accuracy"].between(0, 1).all() and steps["reward_accuracy"].tail(3).mean() > 0.5


def test_packed_sequences_are_full_and_hold_several_samples(tune: Callable[..., Path]) -> None:
    folder = tune(technique="lora", packed=True, sequence_length=512, batch_size=2, steps=4, dataset="grammar")
    steps = steps_of(folder)
    assert (steps["padded_tokens"] == 2 * 512).all()
    assert (steps["tokens"] > 0.8 * steps["padded_tokens"]).all()
    assert (steps["samples"] > 4).all()


def test_the_data_are_passed_over_again_when_they_end(
    tune: Callable[..., Path], tmp_path: Path, texts: Callable[[str], Path]
) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join((texts("preferences") / "train.jsonl").read_text().splitlines(keepends=True)[:8]))
    data = tmp_path / "data"
    prepare_texts("short", TextFile(source="text-file", path=str(short), samples="preference"), data, RESOURCES)
    folder = tune(data=data, technique="lora", batch_size=4, profiler="kineto")
    epochs = steps_of(folder)["epoch"].tolist()
    assert epochs[:14] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    record = read_run(folder)
    assert record.steps_per_pass == 2
    assert record.profiled_window.crosses_pass


def test_tokens_per_sample_are_those_that_are_left(tune: Callable[..., Path]) -> None:
    # Every article is far longer than 64 tokens, so every one is cut.
    articles = measure_run(tune(technique="lora", dataset="articles", sequence_length=64, steps=4))
    assert 60 < articles["tokens_per_sample"] <= 64
    assert articles["padding_share"] == 0


def test_what_cannot_be_trained_is_said_in_one_line(tune: Callable[..., Path]) -> None:
    record = read_run(tune(technique="lora", batch_size=400, gradient_accumulation_steps=2))
    assert record.outcome == "failed"
    said = r"rank 0: batch_size: a step of all devices needs 800 samples, found \d+"
    assert re.fullmatch(said, describe_reason(record.reason)), record.reason


@pytest.mark.nsys
@pytest.mark.rare
def test_one_nsys_report_shows_the_phases_of_both_ranks(tune: Callable[..., Path]) -> None:
    folder = tune(technique="lora", devices=2, profiler="nsys")
    phases = pd.read_parquet(folder / "activity" / "phases.parquet")
    counts = phases[phases["step"].notna()].groupby(["rank", "phase"]).size()
    names = ("step", "data", "forward", "backward", "optimizer")
    assert counts.to_dict() == {(rank, name): 2 for rank in (0, 1) for name in names}
    assert measure_run(folder)["inconsistency"] is None


def test_a_loss_that_is_not_finite_is_an_outcome(tune: Callable[..., Path]) -> None:
    folder = tune(technique="full", learning_rate=1e30, steps=2)
    record = read_run(folder)
    assert record.outcome == "diverged", record.reason
    assert len(pd.read_csv(folder / "steps.csv")) >= 4


@pytest.mark.parametrize(("technique", "rate"), [("lora", 3e-4), ("dpo", 5e-4), ("full", 2e-5)])
def test_the_recipe_is_given_the_rate_of_the_technique_unless_one_is_stated(technique: str, rate: float) -> None:
    from multicard.programs.llm.torchtune_backend import recipe_settings

    model, sample_texts = make_model_provenance(), make_text_provenance(kind="preference")
    for stated, expected in ((None, rate), (0.1, 0.1)):
        p = LlmParameters(technique=technique, learning_rate=stated)
        settings = recipe_settings(p, model, sample_texts, Path("train.json"), Path("out"))
        assert settings["optimizer"]["lr"] == expected


@pytest.mark.parametrize(
    ("technique", "configuration"),
    [
        ({"technique": "lora"}, "llama3/8B_lora"),
        ({"technique": "qlora"}, "llama3/8B_qlora_single_device"),
        ({"technique": "qat"}, "llama3/8B_qat_lora"),
        ({"technique": "qat", "qat_of": "weights"}, "llama3/8B_qat_full"),
        ({"technique": "dpo"}, "llama3_1/8B_lora_dpo"),
        ({"technique": "full"}, "llama3/8B_full"),
    ],
)
def test_learning_rates_are_those_of_torchtunes_own_configurations(
    technique: dict[str, Any], configuration: str
) -> None:
    [recipes] = importlib.util.find_spec("recipes").submodule_search_locations  # torchtune's, beside it
    stock = yaml.safe_load((Path(recipes) / "configs" / f"{configuration}.yaml").read_text())
    assert LlmParameters(**technique).peak_learning_rate == float(stock["optimizer"]["lr"])
    assert LlmParameters(**technique, learning_rate=0.1).peak_learning_rate == 0.1

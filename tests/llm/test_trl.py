"""Tuning by TRL trains on the sequences of torchtune's data sets, and learns as torchtune's recipes do."""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from multicard.config.read_run import read_run
from multicard.core.layout import PHASES
from multicard.core.reasons import describe_reason
from multicard.programs.llm.parameters import LlmParameters
from multicard.results.measure import measure_run
from tuning_runs import ALL_STEPS, SMALL, steps_of

pytest.importorskip("trl", reason="needs TRL")

pytestmark = pytest.mark.slow

COUNTS = ["samples", "tokens", "padded_tokens"]
REWARDS = ["reward_chosen", "reward_rejected", "reward_accuracy"]
# The first update is at once the largest. At this rate AdamW, which divides a gradient by its size, makes of rounding
# errors in tiny gradients less than is compared.
FIRST_STEPS = {"warmup_steps": 0, "steps": 10, "learning_rate": 2e-5}


@pytest.fixture
def both(tune: Callable[..., Path]) -> Callable[..., tuple[pd.DataFrame, pd.DataFrame]]:
    """Run a job by torchtune and by TRL; return the steps of both, ordered by step and rank."""

    def run(**changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
        tables = [steps_of(tune(library=library, **changes)) for library in ("torchtune", "trl")]
        ordered = [table.sort_values(["step", "rank"]).reset_index(drop=True) for table in tables]
        return ordered[0], ordered[1]

    return run


@pytest.mark.parametrize("devices", [1, 2])
def test_the_first_losses_of_all_weights_are_those_of_torchtune(both: Callable[..., Any], devices: int) -> None:
    torchtune, trl = both(technique="full", devices=devices, **FIRST_STEPS)
    assert trl["loss"][: 3 * devices].tolist() == pytest.approx(torchtune["loss"][: 3 * devices].tolist(), abs=1e-5)
    pd.testing.assert_frame_equal(trl[COUNTS], torchtune[COUNTS])


@pytest.mark.parametrize("devices", [1, 2])
def test_the_first_losses_of_equal_adapters_are_those_of_torchtune(both: Callable[..., Any], devices: int) -> None:
    torchtune, trl = both(module="equal_adapters", technique="lora", devices=devices, **FIRST_STEPS)
    assert trl["loss"][: 3 * devices].tolist() == pytest.approx(torchtune["loss"][: 3 * devices].tolist(), abs=1e-5)
    pd.testing.assert_frame_equal(trl[COUNTS], torchtune[COUNTS])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("qat_of", ["adapters", "weights"])
def test_the_first_losses_of_layers_that_round_are_near_those_of_torchtune(
    both: Callable[..., Any], qat_of: str, devices: int
) -> None:
    torchtune, trl = both(module="equal_adapters", technique="qat", qat_of=qat_of, devices=devices, **FIRST_STEPS)
    losses, expected = trl["loss"].tolist(), torchtune["loss"].tolist()
    # One layer computes what torchtune's does (test_trl_quantization.py), but between layers the last bits of values
    # differ, and some values round to another level: embeddings that are changed by 1e-7 of their size change the loss
    # of this model by up to 1.5e-3, and not at all if nothing rounds. Adapters and weights differ by 4e-3.
    assert losses[:devices] == pytest.approx(expected[:devices], abs=2e-3)
    # After updates, too: and with TRL's version of PyTorch, a value at the end of its range has no gradient.
    assert losses[: 3 * devices] == pytest.approx(expected[: 3 * devices], abs=2e-2)
    pd.testing.assert_frame_equal(trl[COUNTS], torchtune[COUNTS])


def test_a_step_of_several_batches_is_weighted_as_by_torchtune(both: Callable[..., Any]) -> None:
    torchtune, trl = both(
        module="equal_adapters", technique="lora", devices=2, gradient_accumulation_steps=3, **FIRST_STEPS
    )
    assert trl["loss"][:6].tolist() == pytest.approx(torchtune["loss"][:6].tolist(), abs=1e-5)
    pd.testing.assert_frame_equal(trl[COUNTS], torchtune[COUNTS])


def test_dpo_begins_with_the_logarithm_of_2_and_goes_on_as_by_torchtune(both: Callable[..., Any]) -> None:
    torchtune, trl = both(module="equal_adapters", technique="dpo", devices=2, **FIRST_STEPS)
    for steps in (torchtune, trl):
        # Policy and reference are the same model, so no answer has a reward.
        assert steps["loss"][:2].tolist() == pytest.approx([math.log(2)] * 2, abs=1e-6)
        assert (steps[REWARDS][:2] == 0).all(axis=None)
    assert trl["loss"][:6].tolist() == pytest.approx(torchtune["loss"][:6].tolist(), abs=1e-5)
    pd.testing.assert_frame_equal(trl[COUNTS], torchtune[COUNTS])
    # TRL logs means over all ranks.
    means = torchtune.groupby("step")[REWARDS].transform("mean")
    np.testing.assert_allclose(trl[REWARDS], means, atol=1e-5)


@pytest.mark.parametrize("technique", ["lora", "dpo"])
def test_a_job_by_trl_learns_and_is_recorded(tune: Callable[..., Path], technique: str) -> None:
    folder = tune(technique=technique, library="trl", devices=2)
    steps = steps_of(folder)
    assert steps["window"].value_counts().to_dict() == {"warmup": 2 * 2, "measured": 8 * 2}
    assert len(steps) == ALL_STEPS * 2 and (steps["samples"] == SMALL["batch_size"]).all()
    found = measure_run(folder)
    assert found["loss_at_end"] < found["loss_at_start"]
    coverage = steps[[f"{name}_s" for name in PHASES]].sum(axis=1) / steps["duration_s"]
    assert 0.9 < coverage.median() <= 1
    assert steps[["data_s", "forward_s", "backward_s", "optimizer_s"]].notna().all(axis=None)
    assert (steps[REWARDS].notna() if technique == "dpo" else steps[REWARDS].isna()).all(axis=None)


def test_a_pass_ends_with_its_last_whole_step_and_the_next_one_has_another_order() -> None:
    from torch.utils.data import DistributedSampler

    from multicard.programs.llm.trl_data import TorchtuneOrder

    p = LlmParameters(devices=2, batch_size=2, gradient_accumulation_steps=2)
    order = TorchtuneOrder(21, p)
    for epoch in (0, 1):
        order.set_epoch(epoch)
        # Of 21 samples, and one again, each rank has 11, of which 8 are two steps of two batches.
        batches = np.array(list(order)).reshape(4, 2, 2)
        for rank in (0, 1):
            of_recipe = DistributedSampler(range(21), 2, rank, shuffle=True, seed=0)
            of_recipe.set_epoch(epoch)
            assert batches[:, rank].ravel().tolist() == list(of_recipe)[:8]
    assert len(order) == 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 400}, r"batch_size: a step of all devices needs 400 samples, found \d+"),
        ({"sequence_length": 16}, "sequence_length: 16 cuts off every answer of a batch"),
    ],
    ids=["too few samples", "too short"],
)
def test_what_trl_cannot_train_is_said_in_one_line(
    tune: Callable[..., Path], changes: dict[str, Any], said: str
) -> None:
    record = read_run(tune(technique="lora", library="trl", **changes))
    assert record.outcome == "failed"
    assert re.fullmatch(f"rank 0: {said}", describe_reason(record.reason)), record.reason


@pytest.mark.rare
def test_a_scenario_varies_the_library_and_the_figure_of_techniques_names_it(tmp_path: Path) -> None:
    (tmp_path / "libraries.yaml").write_text(
        """\
models: {tiny: {architecture: tiny}}
datasets: {grammar: {source: shipped-text, texts: grammar}}
scenarios:
  libraries:
    question: Which library tunes faster?
    fixed:
      {workload: llm, device: cpu, dataset: grammar, precision: fp32, sequence_length: 64, warmup_steps: 1, steps: 3,
      profiled_steps: 2}
    vary: {technique: [lora, qat], library: [torchtune, trl], devices: [1, 2]}
    figures: [techniques]
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "multicard", "run", "libraries.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    bars = pd.read_csv(tmp_path / "results-libraries" / "figures" / "libraries" / "techniques.csv")
    processes = ("1 CPU process", "2 CPU processes")
    libraries = ("torchtune", "TRL")
    expected = {
        (name, f"{library}, {count}") for name in ("lora", "qat") for library in libraries for count in processes
    }
    assert set(zip(bars["technique"], bars["series"], strict=True)) == expected
    assert bars["iteration_time_s"].notna().all()

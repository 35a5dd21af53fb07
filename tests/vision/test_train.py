"""Evaluation and number formats."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from multicard.vision.precision import autocast, gradient_scaler, parameter_dtype
from multicard.vision.train import evaluate, is_out_of_memory

CPU = torch.device("cpu")


def test_evaluation_gives_mean_loss_and_accuracy_over_unequal_batches() -> None:
    # Scores of log 3 against log 1 give probabilities 3/4 and 1/4: 3 of 4 samples right.
    scores = torch.log(torch.tensor([[3.0, 1.0], [3.0, 1.0], [1.0, 3.0], [1.0, 3.0]]))
    labels = torch.tensor([0, 0, 1, 0])
    loader = DataLoader(TensorDataset(scores, labels), batch_size=3)  # two batches; a third pass counts for nothing
    loss, accuracy = evaluate(nn.Identity(), loader, "fp32", CPU, torch.float32, passes=3)
    assert accuracy == 0.75
    expected = -(3 * torch.log(torch.tensor(0.75)) + torch.log(torch.tensor(0.25))).item() / 4
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "weights", "product"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("fp16", torch.float32, torch.float16),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_a_precision_computes_in_its_own_format(precision: str, weights: torch.dtype, product: torch.dtype) -> None:
    matrix = torch.ones(4, 4, dtype=parameter_dtype(precision))
    assert matrix.dtype == weights
    with autocast(precision, CPU):
        assert (matrix @ matrix).dtype == product
    assert gradient_scaler(precision, CPU).is_enabled() == (precision == "fp16")


def test_running_out_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))

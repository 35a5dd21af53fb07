"""The setting of TF32: all of PyTorch accepts it."""

from collections.abc import Iterator

import pytest
import torch

from multicard.observe.record.operations import allows_tf32
from multicard.programs.tf32 import allow_tf32, choose_fp32


@pytest.fixture
def tf32_as_before() -> Iterator[None]:
    yield
    allow_tf32(matmul=False, cudnn=True)


@pytest.mark.usefixtures("tf32_as_before")
@pytest.mark.parametrize(
    ("tf32", "matmul", "cudnn"), [("default", False, True), ("on", True, True), ("off", False, False)]
)
def test_both_of_pytorchs_settings_of_tf32_can_be_read(tf32: str, matmul: bool, cudnn: bool) -> None:
    choose_fp32(tf32)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (matmul, cudnn)
    assert torch.get_float32_matmul_precision() == ("high" if matmul else "highest")
    assert (torch.backends.cuda.matmul.fp32_precision == "tf32") == matmul
    assert (torch.backends.cudnn.conv.fp32_precision == "tf32") == cudnn
    assert (allows_tf32(of_convolutions=False), allows_tf32(of_convolutions=True)) == (matmul, cudnn)

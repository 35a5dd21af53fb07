"""Operations of what PyTorch runs, and bytes that its operators read and write, against counts by hand."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from multicard.analysis.peaks import PEAKS
from multicard.limits.device_job import fp32_as
from multicard.record import operations
from multicard.record.operations import OperationCounter, StepCounter, allows_tf32, bytes_of

N, INDEX_BYTES = 6, 8


def counted(call: Callable[[], Any]) -> int | None:
    with OperationCounter() as counter:
        call()
    return counter.bytes


def test_a_linear_layer_reads_and_writes_its_matrices_forward_and_backward() -> None:
    b, m, n = 5, 7, 11
    with torch.device("meta"):
        layer, inputs, gradient = nn.Linear(m, n), torch.empty(b, m), torch.empty(b, n)
    # The product reads inputs, weights and bias, and writes the output.
    assert counted(lambda: layer(inputs)) == 4 * (b * m + m * n + n + b * n)
    output = layer(inputs)
    # Of the weights the gradient is a product of the output's and the inputs, of the bias a sum of the output's.
    assert counted(lambda: output.backward(gradient)) == 4 * ((b * n + b * m + m * n) + (b * n + n))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x, y: x + y, 3 * 4 * N),
        (lambda x, y: x * x, 2 * 4 * N),
        (lambda x, y: torch.add(x, y, out=y), 2 * 4 * N + 4 * N),
        (lambda x, y: x + y[:1].expand(N), 2 * 4 * N + 4),
        (lambda x, y: x.copy_(y), 2 * 4 * N),
        (lambda x, y: x.to(torch.bfloat16), (4 + 2) * N),
        (lambda x, y: torch.zeros_like(x), 4 * N),
        (lambda x, y: torch._foreach_add_([x, x], [y, y]), 3 * 4 * N),
        (lambda x, y: (x.view(2, 3).t(), x[1:], x.detach(), x.unsafe_chunk(2), x.split(2)), 0),
        (lambda x, y: (torch.empty_like(x), x.new_empty(N), x.numel()), 0),
        # Two rows of a table are read and written, by two indices.
        (lambda x, y: nn.functional.embedding(torch.zeros(2, dtype=torch.long, device="meta"), y.view(3, 2)),
         2 * INDEX_BYTES + 2 * INDEX_BYTES + 2 * 2 * 2 * 4),
        # Of two rows of three the loss reads an element each, and writes itself and its weight.
        (lambda x, y: nn.functional.nll_loss(y.view(2, 3), torch.empty(2, dtype=torch.long, device="meta")),
         2 * INDEX_BYTES + 2 * 4 + 4 + 4),
        # Gradients are made from the shape of what was given, four times as large here.
        (lambda x, y: torch.ops.aten.avg_pool2d_backward(
            y.view(1, 1, 2, 3), torch.empty(1, 1, 4, 6, device="meta"), [2, 2], [2, 2], [0, 0], False, True, None),
         4 * N + 4 * 4 * N),
        (lambda x, y: torch.ops.aten.nll_loss_backward(
            y[0], x.view(2, 3), torch.empty(2, dtype=torch.long, device="meta"), None, 1, -100, y[1]),
         4 + 4 + 2 * INDEX_BYTES + 4 * N),
    ],
)  # fmt: skip
def test_every_tensor_of_an_operator_counts_once_and_a_view_not_at_all(call: Any, expected: int) -> None:
    x, y = (torch.empty(N, device="meta") for _ in range(2))
    assert counted(lambda: call(x, y)) == expected


def test_shapes_that_shards_work_out_on_fake_tensors_are_no_operations() -> None:
    with OperationCounter() as counter, FakeTensorMode():
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert counter.total == 0


def test_bytes_are_unknown_of_a_tensor_without_strides() -> None:
    sparse = torch.eye(2).to_sparse()
    assert counted(lambda: sparse * 2) is None


def test_only_tensors_on_the_device_that_trains_count() -> None:
    x = torch.empty(N, device="meta")
    with OperationCounter("meta") as counter:
        x.copy_(torch.ones(N) * 2)
    assert counter.bytes == 4 * N


@pytest.mark.parametrize(("is_scaled", "expected"), [(False, (4 + 3) * 4 * N + 4), (True, (4 + 4) * 4 * N + 4 + 4)])
def test_a_fused_optimizer_writes_gradients_only_to_undo_their_scale(is_scaled: bool, expected: int) -> None:
    weights, gradients, first, second = ([torch.empty(N, device="meta")] for _ in range(4))
    step, scale = torch.empty((), device="meta"), torch.empty((), device="meta")
    args = (weights, gradients, first, second, [], [step])
    found = bytes_of(torch.ops.aten._fused_adamw_.default, args, {"grad_scale": scale if is_scaled else None}, None)
    assert found == expected


@pytest.mark.parametrize(
    ("schema", "args", "out", "expected"),
    [
        # Parts are copied into a place for all ranks' parts, and out of it; gradients into chunks.
        ("all_gather_copy_in(Tensor[] all_gather_inputs, Tensor all_gather_output) -> (Tensor, Tensor)",
         lambda x: ([x, x[:2]], torch.empty(2 * (N + 2), device="meta")), None, 2 * 4 * (N + 2)),
        ("split_with_sizes_copy(Tensor all_gather_output, SymInt[] sizes, int dim=0, *, Tensor(a!)[] out) -> ()",
         lambda x: (x, [2, 4]), lambda x: [torch.empty_like(x[:2]), torch.empty_like(x[2:])], 2 * 4 * N),
        ("chunk_cat(Tensor[] tensors, int dim, int num_chunks, *, Tensor(a!) out) -> ()",
         lambda x: ([x], 0, 2), lambda x: torch.empty_like(x), 2 * 4 * N),
    ],
)  # fmt: skip
def test_copies_of_fully_sharded_training_count(schema: str, args: Any, out: Any, expected: int) -> None:
    x = torch.empty(N, device="meta")
    operator = SimpleNamespace(_schema=torch._C.parse_schema(f"fsdp::{schema}"))
    assert bytes_of(operator, args(x), {"out": out(x)} if out else {}, None) == expected


@pytest.mark.parametrize(("reentrant", "again"), [(False, 1), (True, 2)])
def test_what_is_computed_again_in_a_backward_pass_is_known_apart(reentrant: bool, again: int) -> None:
    inner, outer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8)
    with OperationCounter() as counter:
        outer(checkpoint(inner, torch.ones(4, 8, requires_grad=True), use_reentrant=reentrant)).sum().backward()
    product = 2 * 4 * 8 * 8
    # Three layers, each of which needs both gradients; without reentrance the last product is not needed again.
    assert (counter.total - counter.again, counter.again) == (9 * product, again * product)


def test_tf32_is_known_by_the_settings_that_pytorch_has_since_2_9() -> None:
    for precision in ("fp32", "tf32"):
        with fp32_as(precision):
            assert [allows_tf32(of_convolutions) for of_convolutions in (False, True)] == [precision == "tf32"] * 2


def test_fused_attention_of_a_cpu_counts_as_its_products() -> None:
    q = torch.ones(2, 4, 16, 8)
    with OperationCounter() as counter:
        nn.functional.scaled_dot_product_attention(q, q, q)
    # Two products of 16 × 16 × 8 for each of 2 × 4 heads.
    assert (counter.total, counter.problem) == (2 * 2 * 8 * 16 * 16 * 8, None)


def test_products_in_fp8_have_a_precision_without_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_compiled", lambda: False)  # by another test of this process
    a, b = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.ones(16, 32).to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    counter = StepCounter(1)
    torch.ones(512, 512) @ torch.ones(512, 512)
    torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    counter.end()
    assert counter.record["precision"] == "fp8"
    assert counter.record["model"] == 2 * 512**3 + 2 * 16 * 16 * 32
    assert not any("fp8" in peaks for peaks in PEAKS.values())

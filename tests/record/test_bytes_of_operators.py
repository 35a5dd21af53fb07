"""Bytes that PyTorch's operators read and write, against counts by hand; nothing is computed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from multicard.record.operations import OperationCounter, bytes_of

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
        (lambda x, y: x.add_(y), 3 * 4 * N),
        (lambda x, y: x * x, 2 * 4 * N),
        (lambda x, y: torch.add(x, y, out=y), 2 * 4 * N + 4 * N),
        (lambda x, y: x + y[:1].expand(N), 2 * 4 * N + 4),
        (lambda x, y: x.copy_(y), 2 * 4 * N),
        (lambda x, y: x.to(torch.bfloat16), (4 + 2) * N),
        (lambda x, y: x.zero_(), 4 * N),
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

"""Operations of what PyTorch runs, against counts by hand and what was published of a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

from factories import make_run
from multicard.machine.device_job import fp32_as
from multicard.observe.record import operations
from multicard.observe.record.operations import OperationCounter, StepCounter, allows_tf32
from multicard.results.utilization import PEAKS, operations_of_step
from observed_scripts import Server, after_head


def test_shapes_that_shards_work_out_on_fake_tensors_are_no_operations() -> None:
    with OperationCounter() as counter, FakeTensorMode():
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert counter.total == 0


@pytest.mark.parametrize(("reentrant", "again"), [(False, 1), (True, 2)])
def test_what_is_computed_again_in_a_backward_pass_is_known_apart(reentrant: bool, again: int) -> None:
    inner, outer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8)
    with OperationCounter() as counter:
        outer(checkpoint(inner, torch.ones(4, 8, requires_grad=True), use_reentrant=reentrant)).sum().backward()
    product = 2 * 4 * 8 * 8
    # Three layers, each of which needs both gradients; without reentrance the last product is not needed again.
    assert (counter.total - counter.recomputed, counter.recomputed) == (9 * product, again * product)


class Own(torch.autograd.Function):
    """A product whose forward pass computes without gradients, as every function of one's own does."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The product."""
        context.save_for_backward(w)
        return x @ w

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Of the inputs alone."""
        return gradient @ context.saved_tensors[0].t(), None


class Layer(nn.Module):
    """Such a product, and an activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is kept of it is computed again."""
        return Own.apply(x, torch.ones(8, 8)).relu()


def test_so_it_is_of_functions_of_ones_own() -> None:
    with OperationCounter() as counter:
        checkpoint(Layer(), torch.ones(4, 8, requires_grad=True), use_reentrant=False).sum().backward()
    product = 2 * 4 * 8 * 8
    assert (counter.total - counter.recomputed, counter.recomputed) == (2 * product, product)


def test_gradients_of_gradients_are_computed_once() -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8, requires_grad=True)
    with OperationCounter() as counter:
        [gradient] = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
    # The layer; the gradient of its input, as x = 2 y W; of that product, the gradients of y and W; of the layer, those
    # of x and W.
    assert (counter.total, counter.recomputed) == ((1 + 1 + 2 + 2) * 2 * 4 * 8 * 8, 0)


class Forces(nn.Module):
    """A model whose forward pass computes a gradient, as of the energy of a molecule."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layer, self.checkpointed = nn.Linear(8, 8), checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The gradient of the input."""
        y = checkpoint(self.layer, x, use_reentrant=False) if self.checkpointed else self.layer(x)
        return torch.autograd.grad(y.pow(2).sum(), x)[0]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_gradient_that_a_module_computes_is_not_computed_again(checkpointed: bool) -> None:
    class Doubled(nn.Linear):
        """A layer whose result is kept squared, so that checkpointing has to compute its product again."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The squared result."""
            return super().forward(x).pow(2)

    model = Forces(checkpointed)
    model.layer = Doubled(8, 8)
    with OperationCounter() as counter:
        model(torch.ones(4, 8, requires_grad=True))
    product = 2 * 4 * 8 * 8  # the layer, and the gradient of its input
    assert (counter.total - counter.recomputed, counter.recomputed) == (2 * product, checkpointed * product)


def test_tf32_is_known_by_the_settings_that_pytorch_has_since_2_9() -> None:
    for precision in ("fp32", "tf32"):
        with fp32_as(precision):
            assert [allows_tf32(of_convolutions) for of_convolutions in (False, True)] == [precision == "tf32"] * 2


def test_fused_attention_of_a_cpu_counts_as_its_products() -> None:
    q = torch.ones(2, 4, 16, 8)
    with OperationCounter() as counter:
        nn.functional.scaled_dot_product_attention(q, q, q)
    # Two products of 16 × 16 × 8 for each of 2 × 4 heads, as where they are not fused; looking up costs nothing.
    assert (counter.total, counter.problem) == (2 * 2 * 8 * 16 * 16 * 8, None)
    with OperationCounter() as apart:
        (q @ q.transpose(-2, -1)).softmax(-1) @ q
        nn.Embedding(4, 8)(torch.zeros(3, dtype=torch.long))
    assert apart.total == counter.total


def test_products_in_fp8_have_a_precision_without_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "has_compiled", lambda: False)  # by another test of this process
    a, b = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.ones(16, 32).to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    counter = StepCounter(1)
    torch.ones(512, 512) @ torch.ones(512, 512)
    torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    counter.end()
    assert counter.counted.precision == "fp8"
    assert counter.counted.model == 2 * 512**3 + 2 * 16 * 16 * 32
    assert not any("fp8" in peaks for peaks in PEAKS.values())


FIRST_LAYER = 2 * 112 * 112 * 32 * 3 * 3 * 3  # of MobileNet v2 at 224 px: 32 filters of 3 × 3 × 3, with stride 2


def count_operations(call: Callable[[], object]) -> int:
    with OperationCounter() as counter:
        call()
    assert counter.problem is None
    return counter.total


def trained(model: nn.Module, inputs: torch.Tensor) -> int:
    return count_operations(lambda: model(inputs).sum().backward())


@pytest.mark.parametrize(("groups", "transposed"), [(1, False), (4, True), (16, False)])
def test_a_grouped_convolution_costs_as_much_less_in_both_directions(groups: int, transposed: bool) -> None:
    b, channels, kernel, size = 3, 16, 3, 8
    layer = nn.ConvTranspose2d if transposed else nn.Conv2d
    with torch.device("meta"):
        model = layer(channels, channels, kernel, padding=1, groups=groups)
        inputs = torch.empty(b, channels, size, size, requires_grad=True)
    # Each of size × size outputs, as padding keeps the size, sums the filter over the channels of its group.
    forward = 2 * b * channels * size**2 * kernel**2 * channels // groups
    assert count_operations(lambda: model(inputs)) == forward
    assert trained(model, inputs) == 3 * forward


def test_mobilenet_v2_costs_what_was_published() -> None:
    # Sandler et al. 2018: 300 M multiply-adds at 224 px; torchvision states 0.301 G of them.
    published = MobileNet_V2_Weights.IMAGENET1K_V2.meta["_ops"] * 1e9
    with torch.device("meta"):
        model, images = mobilenet_v2(), torch.empty(2, 3, 224, 224)
    forward = count_operations(lambda: model(images)) // 2
    assert forward == pytest.approx(2 * published, rel=0.002)
    # Each gradient of a layer costs as much as its forward pass; the images need none.
    assert trained(model, images) // 2 == 3 * forward - FIRST_LAYER


# Of a script's step, counted where that is asked for; the script runs as without.


LOOP = """
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
        print("weights", model.weight.tolist())
"""
# A linear layer of 4 by 2 and a batch of 8; its input needs no gradient.
STEP = 2 * (2 * 8 * 4 * 2)


def weights(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("weights")]


@pytest.mark.slow
def test_a_warmup_step_is_counted_and_the_script_learns_the_same(server: Server, tmp_path: Path) -> None:
    found = {}
    for asked in (True, False):
        folder = tmp_path / str(asked)
        folder.mkdir()
        found[asked] = server.run(folder, after_head(LOOP), count_operations=asked)
    known = {"model": STEP, "hardware": STEP, "precision": "fp32", "problem": None}
    assert (found[True].rank["operations"], found[False].rank["operations"]) == (known, None)
    assert found[True].exit_code == found[False].exit_code == 0
    assert weights(found[True].output) == weights(found[False].output) != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f'import torch._dynamo.utils as u\nu.counters["frames"]["total"] = 1\n{LOOP}', "torch.compile is in use"),
        (
            """
from torch.utils.flop_counter import FlopCounterMode
while True:
    for x, y in loader:
        with FlopCounterMode(display=False) as mode:
            loss_of(x, y).backward()
            optimizer.step()
        print("weights", mode.get_total_flops())
""",
            "the script runs in a mode of PyTorch's dispatcher",
        ),
    ],
)
def test_a_script_that_counting_could_change_is_left_alone(
    server: Server, tmp_path: Path, script: str, problem: str
) -> None:
    found = server.run(tmp_path, after_head(script), count_operations=True)
    assert found.exit_code == 0, found.output
    unknown = dict.fromkeys(("model", "hardware", "precision"))
    assert found.rank["operations"] == unknown | {"problem": problem}
    assert len(weights(found.output)) >= 6


def test_operations_of_a_script_are_the_mean_of_its_ranks_if_all_counted() -> None:
    def found(*ranks: Any) -> Any:
        return operations_of_step(make_run(ranks=[{"rank": 0, "operations": each} for each in ranks]), None)

    one = {"model": 10, "hardware": 20, "precision": "tf32", "problem": None}
    assert vars(found(one, one | {"model": 30, "hardware": 40})) == {
        "model": 20, "hardware": 30, "precisions": ("tf32", "fp32"),
    }  # fmt: skip
    assert found(one, None) is found(one | {"model": None, "problem": "…"}) is found() is None

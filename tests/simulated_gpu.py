"""The most that a stock recipe would have allocated on a GPU, found without one.

The recipe's own loop runs on tensors without data, which PyTorch makes and frees as it would those of a GPU; every
storage that an operation makes is counted until it is freed. Where the CPU computes otherwise than a GPU, what PyTorch
does on a GPU stands in: the fused RMS norm where weights are in fp32, flash attention, gradients summed up in place.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter
from torchtune.models.llama3_1._position_embeddings import Llama3ScaledRoPE
from torchtune.modules.low_precision import nf4_linear

from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.models import Architecture
from tuning_jobs import make_recipe, quiet

STEPS = 2  # the last is looked at: by then all that lasts from step to step is there


def peak_bytes(p: LlmParameters, shape: Architecture) -> int:
    """The most that rank 0 holds at once in a step."""
    allocations = Allocations(shape.vocabulary)
    if p.distributed:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=p.devices)
    try:
        with like_a_gpu(allocations), FakeTensorMode(allow_non_fake_inputs=True), allocations, quiet():
            recipe = make_recipe(p, shape, STEPS)

            def look(number: int) -> None:
                if number == (STEPS - 1) * p.gradient_accumulation_steps:
                    gc.collect()
                    allocations.peak = allocations.held

            recipe._dataloader.before = look
            recipe.train()
            return allocations.peak
    finally:
        if p.distributed:
            dist.destroy_process_group()


class Allocations(TorchDispatchMode):
    """Counts bytes of storages without data.

    Attributes
    ----------
    held, peak
        Bytes now, and at most.
    """

    def __init__(self, vocabulary: int):
        super().__init__()
        self.held = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._vocabulary = vocabulary

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten._local_scalar_dense.default:
            return {torch.bool: True, torch.int64: 1}.get(args[0].dtype, 1.0)  # what asks for a number gets one
        # Autograd adds the second gradient of a weight to the first, but not if tensors are watched as they are here.
        if (
            op is torch.ops.aten.add.Tensor
            and not torch.is_grad_enabled()
            and args[0].shape[:-1] == (self._vocabulary,)
        ):
            return args[0]
        made = op(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            self._see(tensor)
        return made

    def _see(self, tensor: Any) -> None:
        if is_traceable_wrapper_subclass(tensor):  # DTensor, NF4Tensor
            for name in tensor.__tensor_flatten__()[0]:
                self._see(getattr(tensor, name))
        if not isinstance(tensor, FakeTensor) or tensor.fake_device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self.resized(storage)
            weakref.finalize(storage, self._free, key)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Take note of a new size; FSDP frees what it gathered by size 0."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            self.held += size - self._sizes[key]
            self._sizes[key] = size
            self.peak = max(self.peak, self.held)

    def _free(self, key: int) -> None:
        self.held -= self._sizes.pop(key)


@contextmanager
def like_a_gpu(allocations: Allocations) -> Iterator[None]:
    """Have PyTorch and torchtune do what they would on a GPU, and nothing that needs data."""
    resize, rms_norm = torch.UntypedStorage.resize_, F.rms_norm

    def noted_resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        allocations.resized(storage)
        return result

    def norm_of_a_gpu(x: torch.Tensor, normalized_shape: Any, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if weight.dtype == x.dtype:
            return FusedNorm.apply(x, weight)
        return rms_norm(x, normalized_shape, weight, eps)

    def frozen_nf4(linear: torch.nn.Linear, rows: int, columns: int, **_: Any) -> None:
        torch.nn.Linear.__init__(linear, rows, columns, bias=False)
        weight = nf4_linear.to_nf4(linear.weight.detach())
        del linear.weight
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)

    def with_data(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **kwargs)

        return called

    with (
        patch.object(torch.UntypedStorage, "resize_", noted_resize),
        patch.object(F, "rms_norm", norm_of_a_gpu),
        patch.object(F, "scaled_dot_product_attention", lambda q, k, v, **_: FlashAttention.apply(q, k, v)),
        patch.object(nf4_linear.FrozenNF4Linear, "__init__", frozen_nf4),
        patch.object(Llama3ScaledRoPE, "apply_scaling", lambda rope, frequencies, *_: frequencies.clone()),
        patch.object(_fully_shard, "_init_default_mesh", with_data(_fully_shard._init_default_mesh)),
        patch.object(dist, "init_device_mesh", with_data(dist.init_device_mesh)),
    ):
        yield


class FusedNorm(torch.autograd.Function):
    """What aten::_fused_rms_norm makes and keeps on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Keep input, weight and one number per row."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Make the gradients that are asked for."""
        return tuple(
            torch.empty_like(tensor) if asked else None
            for tensor, asked in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        )


class FlashAttention(torch.autograd.Function):
    """What aten::_scaled_dot_product_flash_attention makes and keeps on a GPU."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Keep inputs, output and the logarithm of each row's sum."""
        batch, heads, length, width = q.shape
        output = q.new_empty(batch, length, heads, width).transpose(1, 2)
        ctx.save_for_backward(q, k, v, output, q.new_empty(batch, heads, length, dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Make three gradients, summing up that of the queries in fp32."""
        q, k, v, _, sums = ctx.saved_tensors
        in_use = torch.empty(q.shape, dtype=torch.float32), torch.empty_like(sums)
        gradients = tuple(torch.empty_like(tensor) for tensor in (q, k, v))
        del in_use
        return gradients

"""Floating-point operations of what PyTorch runs, by the formulas of its own counter."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _python_dispatch, flop_counter

from multicard.record.compilation import has_compiled

PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
FP8 = "fp8"
PLAIN = {torch.Tensor, torch.nn.Parameter}
CONVOLUTION = "convolution"  # in the names of such operations


class OperationCounter(_python_dispatch.TorchDispatchMode):
    """Counts the operations of all convolutions and matrix products in a block of code, its backward passes included.

    A multiplication and an addition are two. Normalization, activations and what PyTorch does not run itself (kernels
    of extensions, replayed CUDA graphs) are left out.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.again = 0  # those that activation checkpointing computes again: of a forward pass inside a backward pass
        # `total` by the precision of results, `tf32` where PyTorch computes fp32 in it; `fp8` by that of inputs.
        self.by_precision: Counter[str] = Counter()
        self.problem: str | None = None  # why the numbers are not to be used
        self._calls = 0  # of modules that are open
        self._hooks: list[Any] = []

    def __enter__(self) -> "OperationCounter":
        def begin(*_: Any) -> None:
            self._calls += 1

        def end(*_: Any) -> None:
            self._calls -= 1

        self._hooks = [register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        if not PLAIN.issuperset(types):
            if any(issubclass(each, FakeTensor) for each in types):  # with which shards find out what they give
                return function(*args, **(kwargs or {}))
            return NotImplemented  # shards and the like: what they do with the tensors inside is counted
        found = function(*args, **(kwargs or {}))
        formula = formulas().get(getattr(function, "overloadpacket", None))
        if formula is not None:
            try:
                self._add(formula(*args, **(kwargs or {}), out_val=found), str(function), args, found)
            except Exception as error:  # the code that is counted goes on
                self.problem = f"{type(error).__name__} of the formula of {function}"
        return found

    def _add(self, count: int, name: str, args: Sequence[Any], found: Any) -> None:
        result = next(each for each in (found if isinstance(found, Sequence) else (found,)) if each is not None)
        self.total += count
        # A backward pass calls no module, and computes without gradients: what checkpointing computes again does not.
        if torch._C._current_graph_task_id() != -1 and (self._calls or torch.is_grad_enabled()):
            self.again += count
        precision = PRECISIONS.get(result.dtype, str(result.dtype))
        if precision == "fp32" and result.is_cuda:
            precision = "tf32" if allows_tf32(of_convolutions=CONVOLUTION in name) else precision
        if any(isinstance(each, torch.Tensor) and "float8" in str(each.dtype) for each in args):
            precision = FP8
        self.by_precision[precision] += count


def allows_tf32(of_convolutions: bool) -> bool:
    """Whether PyTorch computes fp32 in TF32 on GPUs.

    By its settings since 2.9: where a script used these, the older ones cannot be read.
    """
    old, new = torch.backends.cuda.matmul, torch.backends.cuda.matmul
    if of_convolutions:
        old, new = torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None)
    how = getattr(new, "fp32_precision", None)
    return old.allow_tf32 if how is None else how == "tf32"


class StepCounter:
    """Counts the operations of a step that begins and ends in hooks, where that changes nothing for the script.

    `record` has `model` and `hardware` operations, the `precision` of most (`fp8` if of any), and the `problem`: why
    these are not known. `devices`: number of those that the process computes on.
    """

    def __init__(self, devices: int) -> None:
        self.record: dict[str, Any] = dict.fromkeys(("model", "hardware", "precision", "problem"))
        self.record["problem"] = _unsupported_reason(devices)
        self._counter = None
        if self.record["problem"] is None:
            self._counter = OperationCounter()
            self._counter.__enter__()

    def end(self) -> None:
        """The step has ended."""
        counter, self._counter = self._counter, None
        if counter is None:
            return
        if _python_dispatch._get_current_dispatch_mode() is not counter:
            self.record["problem"] = (
                "the script entered a mode of PyTorch's dispatcher in the step, and did not leave it"
            )
            return
        counter.__exit__(None, None, None)
        problem = counter.problem or (
            None if counter.total else "PyTorch itself ran no convolution and no matrix product"
        )
        if problem or has_compiled():
            self.record["problem"] = problem or COMPILED
            return
        # Of a step that is partly in fp8, for which no peak is known, no peak is the right one.
        precision = FP8 if FP8 in counter.by_precision else counter.by_precision.most_common(1)[0][0]
        self.record |= {"model": counter.total - counter.again, "hardware": counter.total, "precision": precision}


COMPILED = "torch.compile is in use"


def _unsupported_reason(devices: int) -> str | None:
    """Why operations cannot be counted without a change to what runs."""
    if not hasattr(flop_counter, "flop_registry"):
        return f"PyTorch {torch.__version__} has no formulas of operations"
    if devices > 1:
        return "one process drives several GPUs, by threads that are not seen"
    if has_compiled():  # it would not do so as before, and what it makes is not seen
        return COMPILED
    if torch._C._len_torch_dispatch_stack():
        return "the script runs in a mode of PyTorch's dispatcher"
    return None


def formulas() -> dict[Any, Callable[..., int]]:
    """Operations of a call by what is called, where PyTorch 2.11 lacks or mistakes some."""
    if not FORMULAS:
        aten, fused = torch.ops.aten, flop_counter.flop_registry
        FORMULAS.update(fused)
        FORMULAS[aten.convolution_backward] = flop_counter.shape_wrapper(_backward)
        for end in ("", "_backward"):
            known = fused.get(getattr(aten, f"_scaled_dot_product_flash_attention{end}"))
            of_cpu = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{end}", None)
            if known and of_cpu:
                FORMULAS[of_cpu] = known
    return FORMULAS


FORMULAS: dict[Any, Callable[..., int]] = {}


def _backward(grad_out: Sequence[int], x: Sequence[int], w: Sequence[int], *options: Any, out_shape: Any = None) -> int:
    """Of the shapes of a convolution: each of its two gradients takes as many operations as its forward pass.

    PyTorch 2.11 counts the gradient of a grouped convolution's weights once for each group
    (https://github.com/pytorch/pytorch/pull/183405).
    """
    *_, transposed, _output_padding, _groups, output_mask = options
    forward = 2 * prod(x if transposed else grad_out) * prod(w[1:])
    return forward * sum(map(bool, output_mask[:2]))

"""Count the floating-point operations that PyTorch runs, by the formulas of its own counter (`flop_counter`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_fields
from math import prod
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _python_dispatch, flop_counter

from multicard.core.values import JsonObject
from multicard.observe.record.compilation import has_compiled
from multicard.observe.replace import replace

PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
FP8 = "fp8"
PLAIN = {torch.Tensor, torch.nn.Parameter}  # types of tensors that are no wrappers of other tensors
# The function of torch.autograd that runs every backward pass, and the position of its argument `create_graph`. It is
# not public; without it, a backward pass that creates a graph counts as computed a second time.
RUN_BACKWARD = "_engine_run_backward"
CREATE_GRAPH = 3
CONVOLUTION = "convolution"  # an operation whose name contains this is a convolution


class OpenBackward(NamedTuple):
    """A backward pass that is running."""

    open_calls: int  # calls of modules that were open when it began: a forward pass may compute gradients
    creates_graph: bool  # `create_graph`: it runs with gradients enabled, so that there can be gradients of gradients


class OperationCounter(_python_dispatch.TorchDispatchMode):
    """Counts the operations of all convolutions and matrix products in a block of code, its backward passes included.

    A multiplication and an addition count as two operations. Normalization and activations are left out, and so is what
    PyTorch does not run itself: kernels of extensions and replayed CUDA graphs.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        # Part of `total` that activation checkpointing computes a second time: a forward pass inside a backward pass.
        self.recomputed = 0
        # Parts of `total` by precision. This is `fp8` if an input is fp8, else the type of the result; it is `tf32`
        # instead of `fp32` where PyTorch computes in TF32.
        self.by_precision: Counter[str] = Counter()
        self.problem: str | None = None  # why the numbers must not be used; None if they may be
        self._open_calls = 0  # nesting depth of calls of modules
        self._open_backwards: list[OpenBackward] = []  # the innermost is last
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "OperationCounter":
        def begin(*_: Any) -> None:
            self._open_calls += 1

        def end(*_: Any) -> None:
            self._open_calls -= 1

        def run_backward(plain: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            creates_graph = len(arguments) > CREATE_GRAPH and arguments[CREATE_GRAPH] is True
            self._open_backwards.append(OpenBackward(self._open_calls, creates_graph))
            try:
                return plain(*arguments, **options)
            finally:
                self._open_backwards.pop()

        self._undo = [
            register_module_forward_pre_hook(begin).remove,
            register_module_forward_hook(end, always_call=True).remove,
        ]
        if hasattr(torch.autograd, RUN_BACKWARD):
            self._undo.append(replace(torch.autograd, RUN_BACKWARD, run_backward))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for undo in self._undo:
            undo()
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        if not PLAIN.issuperset(types):
            # DTensor runs an operation on fake tensors to learn the shape of its result. Nothing is computed.
            if any(issubclass(tensor_type, FakeTensor) for tensor_type in types):
                return function(*args, **(kwargs or {}))
            return NotImplemented  # DTensor and other wrappers: counted when they compute with the inner tensors
        result = function(*args, **(kwargs or {}))
        formula = formulas().get(getattr(function, "overloadpacket", None))
        if formula is not None:
            try:
                count = formula(*args, **(kwargs or {}), out_val=result)
                self._add(count, str(function), args, result)
            except Exception as error:  # the code whose operations are counted must go on
                self.problem = f"{type(error).__name__} of the formula of {function}"
        return result

    def _add(self, count: int, name: str, args: Sequence[Any], result: Any) -> None:
        self.total += count
        is_within_backward = torch._C._current_graph_task_id() != -1
        if is_within_backward and self._is_forward_within_backward():
            self.recomputed += count
        self.by_precision[_precision_of(name, args, result)] += count

    def _is_forward_within_backward(self) -> bool:
        """True if an operation inside a backward pass is of a forward pass, which checkpointing runs a second time.

        The backward pass itself calls no module, and runs with gradients disabled unless it creates a graph. So a
        checkpointed function that calls no module is not recognized inside a backward pass that creates a graph.
        """
        backward = self._open_backwards[-1] if self._open_backwards else OpenBackward(0, creates_graph=False)
        if self._open_calls > backward.open_calls:
            return True
        return torch.is_grad_enabled() and not backward.creates_graph


def _precision_of(name: str, args: Sequence[Any], result: Any) -> str:
    """Return the precision in which an operation was computed, such as "bf16"."""
    if any(isinstance(value, torch.Tensor) and "float8" in str(value.dtype) for value in args):
        return FP8
    results = result if isinstance(result, Sequence) else (result,)
    tensor = next(value for value in results if value is not None)
    precision = PRECISIONS.get(tensor.dtype, str(tensor.dtype))
    if precision == "fp32" and tensor.is_cuda and allows_tf32(of_convolutions=CONVOLUTION in name):
        return "tf32"
    return precision


def allows_tf32(of_convolutions: bool) -> bool:
    """Return True if PyTorch computes fp32 in TF32 on GPUs, in convolutions (`of_convolutions`) or in matrix products.

    The settings that PyTorch has since 2.9 are read if they exist, because reading the older ones fails once a script
    has used the newer ones.
    """
    old: Any = torch.backends.cudnn if of_convolutions else torch.backends.cuda.matmul
    new: Any = getattr(torch.backends.cudnn, "conv", None) if of_convolutions else torch.backends.cuda.matmul
    precision = getattr(new, "fp32_precision", None)
    return old.allow_tf32 if precision is None else precision == "tf32"


@dataclass(frozen=True)
class CountedOperations:
    """Operations of one step, as `StepCounter` has counted them."""

    model: int | None = None  # without those that checkpointing computes a second time
    hardware: int | None = None  # all operations
    precision: str | None = None  # that of most operations, but "fp8" if any is in fp8
    problem: str | None = None  # why the three above are None; None if they are known, and until the step has ended
    padded_tokens: int | None = None  # tokens of the step, padding included; None if the script does not state them

    def record(self) -> JsonObject:
        """Return the fields for rank.json, which has `padded_tokens` only if they are known."""
        record: JsonObject = asdict(self)
        if self.padded_tokens is None:
            del record["padded_tokens"]
        return record


class StepCounter:
    """Counts the operations of one step, from the making of this object to the call of `end`.

    It counts nothing if counting would change what the script runs. `devices`: number of devices that the process
    computes on.
    """

    def __init__(self, devices: int) -> None:
        self.counted = CountedOperations(problem=_unsupported_reason(devices))
        self._counter: OperationCounter | None = None
        if self.counted.problem is None:
            self._counter = OperationCounter()
            self._counter.__enter__()

    def end(self, padded_tokens: int | None = None) -> None:
        """Stop counting, and set `counted`; `padded_tokens`: those of the step, None if they are not known."""
        self.counted = replace_fields(self._stop(), padded_tokens=padded_tokens)

    def _stop(self) -> CountedOperations:
        counter = self._counter
        self._counter = None
        if counter is None:
            return self.counted
        if _python_dispatch._get_current_dispatch_mode() is not counter:
            problem = "the script entered a mode of PyTorch's dispatcher in the step, and did not leave it"
            return CountedOperations(problem=problem)
        counter.__exit__(None, None, None)
        if counter.problem is not None:
            return CountedOperations(problem=counter.problem)
        if not counter.total:
            return CountedOperations(problem="PyTorch itself ran no convolution and no matrix product")
        if has_compiled():
            return CountedOperations(problem=COMPILED)
        # A step that is partly in fp8 counts as fp8. No peak performance is known for it, and no other would be right.
        precision = FP8 if FP8 in counter.by_precision else counter.by_precision.most_common(1)[0][0]
        return CountedOperations(counter.total - counter.recomputed, counter.total, precision)


COMPILED = "torch.compile is in use"


def _unsupported_reason(devices: int) -> str | None:
    """Return why operations cannot be counted without a change to what runs; None if they can."""
    if not hasattr(flop_counter, "flop_registry"):
        return f"PyTorch {torch.__version__} has no formulas of operations"
    if devices > 1:
        return "one process drives several GPUs, by threads that are not seen"
    if has_compiled():  # torch.compile would compile otherwise under the counter, which does not see compiled code
        return COMPILED
    if torch._C._len_torch_dispatch_stack():
        return "the script runs in a mode of PyTorch's dispatcher"
    return None


def formulas() -> dict[Any, Callable[..., int]]:
    """Return, for each operation, the formula that gives its number of floating-point operations.

    They are PyTorch's formulas, with two changes: that of a convolution's backward pass is wrong in PyTorch 2.11, and
    flash attention on a CPU has none there.
    """
    if not FORMULAS:
        aten = torch.ops.aten
        FORMULAS.update(flop_counter.flop_registry)
        FORMULAS[aten.convolution_backward] = flop_counter.shape_wrapper(_convolution_backward)
        for ending in ("", "_backward"):
            on_gpu = getattr(aten, f"_scaled_dot_product_flash_attention{ending}")
            on_cpu = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{ending}", None)
            if on_cpu is not None and on_gpu in FORMULAS:
                FORMULAS[on_cpu] = FORMULAS[on_gpu]
    return FORMULAS


FORMULAS: dict[Any, Callable[..., int]] = {}  # filled by `formulas`


def _convolution_backward(
    grad_out: Sequence[int], x: Sequence[int], w: Sequence[int], *options: Any, out_shape: Any = None
) -> int:
    """Return the number of operations of a convolution's backward pass, from the shapes of its tensors.

    The gradient of the input and that of the weights each take as many operations as the forward pass.

    >>> forward = 2 * (1 * 8 * 5 * 5) * (3 * 3 * 3)  # 8 channels of 5 x 5 from 3, by a kernel of 3 x 3
    >>> shapes = [1, 8, 5, 5], [1, 3, 5, 5], [8, 3, 3, 3]
    >>> _convolution_backward(*shapes, False, [0, 0], 1, [True, True, False]) == 2 * forward
    True

    It replaces the formula of PyTorch 2.11, which counts the gradient of a grouped convolution's weights once for each
    group (https://github.com/pytorch/pytorch/pull/183405).
    """
    *_, transposed, _output_padding, _groups, output_mask = options
    forward = 2 * prod(x if transposed else grad_out) * prod(w[1:])
    gradients = sum(map(bool, output_mask[:2]))  # how many are needed of the input's and the weights'
    return forward * gradients

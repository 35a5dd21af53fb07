"""Sum up what held the memory of a GPU, from a snapshot of PyTorch's allocator.

The snapshot is a dictionary as `torch.cuda.memory._snapshot` documents it. It has the segments that the allocator
reserved. Each segment is cut into blocks, and a block in use has the Python stack that allocated it.

The addresses of blocks show which ones hold parameters, buffers, gradients and optimizer state of live modules and
optimizers. What any other block holds is inferred from its stack: an activation, for example, belongs to the module
whose `forward` allocated it.
"""

import gc
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch
from torch import nn

from multicard.core.reasons import LargestUse, MemoryHeld

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, OTHER_TENSORS = "activations", "other_tensors"
FRAGMENTS, OUTSIDE, FREE = "fragments", "outside_pytorch", "free"

TORCH = str(Path(torch.__file__).parent)
# The Python module of the functions of compiled graphs. They do not count as the `forward` of a module, because the
# function of a backward pass is called "forward", too.
COMPILED = "torch.fx.graph_module"
# The file of a stack's outermost frame in a backward pass, if the backward function is written in Python.
BACKWARD = f"{TORCH}/autograd/function.py"


# Parts of the snapshot, with the keys that `torch.cuda.memory._snapshot` documents: a segment, and a frame of a stack.
Segment = Mapping[str, Any]
Frame = Mapping[str, Any]


class Buffers(NamedTuple):
    """Code of PyTorch that allocates memory of one category."""

    path: str  # the path of the code's file begins with this
    function: str  # the name of the function contains this
    category: str


# The first entry that matches a frame decides.
BUFFERS = (
    Buffers(f"{TORCH}/nn/parallel/distributed.py", "", GRADIENTS),  # buckets of DistributedDataParallel
    Buffers(f"{TORCH}/distributed/fsdp/", "reduce", GRADIENTS),
    Buffers(f"{TORCH}/distributed/fsdp/", "", PARAMETERS),  # gathered parameters
    Buffers(f"{TORCH}/optim/", "", OPTIMIZER_STATE),  # also temporary tensors of an update
)


class Forwards:
    """Finds the class of live modules whose `forward` a stack frame is in.

    A class that inherits `forward` counts as the ancestor that defines it. `modules`: all live modules.
    """

    def __init__(self, modules: Iterable[nn.Module]):
        # For each class that defines a `forward`, the number of modules that use it.
        self.modules = Counter(_class_of_forward(type(module)) for module in modules)
        # For each file and function name, the first line of each `forward` there, and the class that defines it.
        self._definitions: dict[tuple[str, str], list[tuple[int, type[nn.Module]]]] = {}
        for module_class in self.modules:
            code = getattr(inspect.unwrap(module_class.forward), "__code__", None)
            if code is not None and module_class.__module__ != COMPILED:
                definitions = self._definitions.setdefault((code.co_filename, code.co_name), [])
                definitions.append((code.co_firstlineno, module_class))

    def called_at(self, frame: Frame) -> type[nn.Module] | None:
        """Return the class that defines the `forward` which a frame is in; None if it is in no `forward`.

        Of several in the same file, it is the last one that begins at or before the frame's line.
        """
        latest_line = 0
        latest_class: type[nn.Module] | None = None
        for first_line, module_class in self._definitions.get((frame["filename"], frame["name"]), ()):
            if latest_line < first_line <= frame["line"]:
                latest_line = first_line
                latest_class = module_class
        return latest_class


def _class_of_forward(module_class: type[nn.Module]) -> type[nn.Module]:
    """Return the class that defines the `forward` of a class of modules: itself, or the one that it inherits from."""
    return next(ancestor for ancestor in module_class.__mro__ if "forward" in vars(ancestor))


class Use(NamedTuple):
    """What a block of memory is used for."""

    category: str
    where: str | None = None  # class of the module for activations, line ("train.py:27") for other tensors, else None


def use_of(frames: Sequence[Frame], forwards: Forwards) -> Use:
    """Return what a block is used for, inferred from the stack that allocated it; `frames`: the innermost is first.

    The first of these rules that applies decides:
    - An empty stack is that of a gradient, because the threads of the backward pass run no Python code.
    - Code in `BUFFERS` allocates its category, unless a module's `forward` lies further inside.
    - A module's `forward` allocates an activation of that module. Of nested modules, the innermost one counts whose
      class is not PyTorch's; if all are PyTorch's, the innermost.
    - A backward function that is written in Python allocates a gradient.
    - Anything else is another tensor, of the innermost line outside PyTorch (or of the innermost line, if none is).
    """
    if not frames:
        return Use(GRADIENTS)
    innermost: Use | None = None  # the innermost module so far, if its class is PyTorch's
    for frame in frames:
        module_class = forwards.called_at(frame)
        if module_class is not None:
            use = Use(ACTIVATIONS, module_class.__qualname__)
            if module_class.__module__.partition(".")[0] != "torch":
                return use
            innermost = innermost or use
        elif innermost is None and (category := _category_of_buffer(frame)) is not None:
            return Use(category)
    if innermost is not None:
        return innermost
    if frames[-1]["filename"] == BACKWARD:
        return Use(GRADIENTS)
    outside_pytorch = (frame for frame in frames if not frame["filename"].startswith(TORCH))
    frame = next(outside_pytorch, frames[0])
    return Use(OTHER_TENSORS, f"{PurePath(frame['filename']).name}:{frame['line']}")


def _category_of_buffer(frame: Frame) -> str | None:
    """Return the category of the first entry of `BUFFERS` that matches a frame; None if none does."""
    for buffers in BUFFERS:
        if frame["filename"].startswith(buffers.path) and buffers.function in frame["name"]:
            return buffers.category
    return None


def owned(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, str]:
    """Return the category of each block that live modules and optimizers own, by the address of the block.

    The categories are parameters (buffers of modules count as these), gradients, and the state of optimizers.
    """
    optimizers = list(optimizers)
    parameters: list[Any] = []
    buffers: list[Any] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters += group["params"]
    for module in modules:
        parameters += module._parameters.values()
        buffers += module._buffers.values()
    gradients = [parameter.grad for parameter in parameters if isinstance(parameter, torch.Tensor)]
    states = [optimizer.state for optimizer in optimizers]
    # If the same memory is in several categories, the last of them here counts.
    return {
        **dict.fromkeys(addresses_of(states), OPTIMIZER_STATE),
        **dict.fromkeys(addresses_of(gradients), GRADIENTS),
        **dict.fromkeys(addresses_of((parameters, buffers)), PARAMETERS),
    }


def addresses_of(value: Any) -> Iterator[int]:
    """Yield the addresses of the memory of GPU tensors in nested containers.

    A wrapper such as DTensor yields those of its inner tensors. Tensors on the CPU are skipped.
    """
    if isinstance(value, torch.Tensor):
        flatten = getattr(value, "__tensor_flatten__", None)
        if flatten is not None:
            names, *_ = flatten()
            yield from addresses_of([getattr(value, name) for name in names])
        elif value.is_cuda:
            yield value.untyped_storage().data_ptr()
    elif isinstance(value, Mapping):
        yield from addresses_of(value.values())
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for part in value:
            yield from addresses_of(part)


def live(base: type) -> list[Any]:
    """Return all objects of a class and of its subclasses that Python's garbage collector knows."""
    # `isinstance` would run code of the objects: it reads `__class__`, which a proxy may redefine.
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), base)]


def sum_up(
    snapshot: Mapping[str, Any], gpu: int, free: int, total: int, owners: Mapping[int, str], forwards: Forwards
) -> MemoryHeld:
    """Return the bytes of a GPU in each category, and the code that holds most of the activations and other tensors.

    The bytes of all categories add up to `total`. The category `fragments` is memory that PyTorch's allocator of this
    process has reserved, but that no block in use takes. `outside_pytorch` is memory that the driver counts as used,
    but that this allocator has not reserved: CUDA contexts, libraries and other processes.

    `free`, `total`: bytes of the GPU, as the driver counts them; `owners`: as `owned` returns them.
    """
    segments = [segment for segment in snapshot["segments"] if segment["device"] == gpu]
    reserved = sum(segment["total_size"] for segment in segments)
    held: Counter[str] = Counter()
    if segments:
        held[FRAGMENTS] = reserved
    by_code: Counter[Use] = Counter()  # bytes of each use whose code is known
    for use, size in _uses(segments, owners, forwards):
        held[FRAGMENTS] -= size
        held[use.category] += size
        if use.where is not None:
            by_code[use] += size
    held[OUTSIDE] = total - free - reserved
    held[FREE] = free
    return MemoryHeld(gpu, total, dict(held), most=_most_of_categories(by_code, forwards))


def _uses(segments: Sequence[Segment], owners: Mapping[int, str], forwards: Forwards) -> Iterator[tuple[Use, int]]:
    """Yield the use and the size in bytes of each block that is in use."""
    # If the script switched the history off, no block has a stack. Then a missing stack does not show a gradient.
    has_stacks = any(block.get("frames") for segment in segments for block in segment["blocks"])
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                owner = owners.get(block.get("address", address))
                if owner is not None:
                    use = Use(owner)
                elif has_stacks:
                    use = use_of(block.get("frames") or [], forwards)
                else:
                    use = Use(OTHER_TENSORS)
                yield use, block["size"]
            address += block["size"]


def _most_of_categories(by_code: Counter[Use], forwards: Forwards) -> dict[str, LargestUse]:
    """Return, for each category in `by_code`, the code that holds most of it, with the bytes that it holds."""
    # `by_code` joins classes of the same name, so their modules are added, too.
    modules_of_classes: Counter[str] = Counter()
    for module_class, count in forwards.modules.items():
        modules_of_classes[module_class.__qualname__] += count
    most: dict[str, LargestUse] = {}
    for use, size in reversed(by_code.most_common()):  # ascending, so that the largest of a category is set last
        modules = modules_of_classes[str(use.where)] if use.category == ACTIVATIONS else None
        most[use.category] = LargestUse(size, use.where, modules)
    return most

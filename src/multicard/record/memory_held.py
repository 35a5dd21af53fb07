"""Sum up what held the memory of a GPU, from a snapshot of PyTorch's allocator.

The snapshot is a dictionary as `torch.cuda.memory._snapshot` documents it: segments that the allocator reserved, each
cut into blocks, and of every block in use the Python stack that allocated it. Live modules and optimizers show which
blocks are theirs. For all others the stack decides, since an activation belongs to the module whose `forward` made it.
"""

import gc
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch
from torch import nn

from multicard.core.reasons import LargestUse, MemoryHeld

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, OTHER_TENSORS = "activations", "other_tensors"
FRAGMENTS, OUTSIDE, FREE = "fragments", "outside_pytorch", "free"

TORCH = str(Path(torch.__file__).parent)
# The module of functions in compiled graphs. Those of a backward pass are called "forward", too.
COMPILED = "torch.fx.graph_module"
# The stack of a backward pass begins in this file where its function is written in Python.
BACKWARD = f"{TORCH}/autograd/function.py"


class Buffers(NamedTuple):
    """Code of PyTorch's that allocates buffers of one category."""

    path: str  # how the path of its file begins
    function: str  # a part of the function's name
    category: str


# The first entry that fits decides.
BUFFERS = (
    Buffers(f"{TORCH}/nn/parallel/distributed.py", "", GRADIENTS),  # buckets of DistributedDataParallel
    Buffers(f"{TORCH}/distributed/fsdp/", "reduce", GRADIENTS),
    Buffers(f"{TORCH}/distributed/fsdp/", "", PARAMETERS),  # gathered ones
    Buffers(f"{TORCH}/optim/", "", OPTIMIZER_STATE),  # and what an update needs meanwhile
)


class Forwards:
    """The `forward` methods of the classes of live modules, by where their code is; a subclass may inherit one."""

    def __init__(self, modules: Iterable[nn.Module]):
        # Number of modules for each class that defines their `forward`.
        self.modules = Counter(_class_of_forward(type(module)) for module in modules)
        # First line and class, for each file and function name.
        self._definitions: dict[tuple[str, str], list[tuple[int, type[nn.Module]]]] = {}
        for module_class in self.modules:
            code = getattr(inspect.unwrap(module_class.forward), "__code__", None)
            if code is not None and module_class.__module__ != COMPILED:
                definitions = self._definitions.setdefault((code.co_filename, code.co_name), [])
                definitions.append((code.co_firstlineno, module_class))

    def called_at(self, frame: Mapping[str, Any]) -> type[nn.Module] | None:
        """Return the class that defines the `forward` which a frame is in: the last one that begins before its line."""
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
    """Category of a block, and which code is behind it: the class of a module, or a line such as "train.py:27"."""

    category: str
    where: str | None = None


def use_of(frames: list[dict[str, Any]], forwards: Forwards) -> Use:
    """Return what a block is for, by the stack that allocated it, the innermost frame first.

    Of nested modules the innermost one counts that is not PyTorch's own; of PyTorch's own the innermost. The threads of
    the backward pass have no Python of their own, so a block without a stack is a gradient.
    """
    if not frames:
        return Use(GRADIENTS)
    innermost: Use | None = None  # its module is PyTorch's own
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


def _category_of_buffer(frame: Mapping[str, Any]) -> str | None:
    """Return the category of what a frame's code allocates if it is PyTorch's and in `BUFFERS`, else None."""
    for buffers in BUFFERS:
        if frame["filename"].startswith(buffers.path) and buffers.function in frame["name"]:
            return buffers.category
    return None


def owned(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, str]:
    """Return the categories of blocks by their address: parameters and buffers, gradients, and state of optimizers."""
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
    # A later category replaces an earlier one, where several hold the same memory.
    return {
        **dict.fromkeys(addresses_of(states), OPTIMIZER_STATE),
        **dict.fromkeys(addresses_of(gradients), GRADIENTS),
        **dict.fromkeys(addresses_of((parameters, buffers)), PARAMETERS),
    }


def addresses_of(value: Any) -> Iterator[int]:
    """Yield the GPU addresses of tensors in nested containers; for wrappers such as DTensor, of the inner tensors."""
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
    # `isinstance` would ask the objects, and proxies answer in strange ways.
    return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), base)]


def sum_up(
    snapshot: Mapping[str, Any], gpu: int, free: int, total: int, owners: Mapping[int, str], forwards: Forwards
) -> MemoryHeld:
    """Return the bytes of a GPU by category, which add up to `total`, and the code that holds most of some categories.

    These are activations and other tensors. `fragments` are reserved but not allocated; `outside_pytorch` is
    what the driver counts as used and PyTorch's allocator of this process has not reserved: contexts, libraries, and
    other processes. `free`, `total`: bytes of the GPU, as the driver counts them; `owners`: as `owned` returns them.
    """
    segments = [segment for segment in snapshot["segments"] if segment["device"] == gpu]
    reserved = sum(segment["total_size"] for segment in segments)
    held: Counter[str] = Counter()
    if segments:
        held[FRAGMENTS] = reserved
    by_code: Counter[Use] = Counter()  # uses that name their code
    for use, size in _uses(segments, owners, forwards):
        held[FRAGMENTS] -= size
        held[use.category] += size
        if use.where is not None:
            by_code[use] += size
    held[OUTSIDE] = total - free - reserved
    held[FREE] = free
    return MemoryHeld(gpu, total, dict(held), most=_most_of_categories(by_code, forwards))


def _uses(segments: list[dict[str, Any]], owners: Mapping[int, str], forwards: Forwards) -> Iterator[tuple[Use, int]]:
    """Yield the use and the bytes of each block that is in use."""
    # Where the script switched the history off, no block has a stack. Then that is no sign of a gradient.
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
    """Return the code that holds most of each category, with its bytes."""
    modules_of_classes = Counter({cls.__qualname__: count for cls, count in forwards.modules.items()})
    most: dict[str, LargestUse] = {}
    for use, size in reversed(by_code.most_common()):  # the most of each category comes last, and stays
        modules = modules_of_classes[str(use.where)] if use.category == ACTIVATIONS else None
        most[use.category] = LargestUse(size, use.where, modules)
    return most

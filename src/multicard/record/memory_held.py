"""What held the memory of a GPU, summed up from a snapshot of PyTorch's allocator.

The snapshot is a dictionary as `torch.cuda.memory._snapshot` documents it: segments that the allocator reserved, each
cut into blocks, and of every block in use the Python stack that allocated it. Live modules and optimizers tell which
blocks are theirs; of all others the stack does, since an activation belongs to the module whose `forward` made it.
"""

import gc
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch
from torch import nn

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, OTHER_TENSORS = "activations", "other_tensors"
FRAGMENTS, OUTSIDE, FREE = "fragments", "outside_pytorch", "free"

TORCH = str(Path(torch.__file__).parent)
# Whose buffers code of PyTorch's allocates, by how its file's path begins and a part of its function's name.
LIBRARY = (
    (f"{TORCH}/nn/parallel/distributed.py", "", GRADIENTS),  # buckets of DistributedDataParallel
    (f"{TORCH}/distributed/fsdp/", "reduce", GRADIENTS),
    (f"{TORCH}/distributed/fsdp/", "", PARAMETERS),  # gathered ones
    (f"{TORCH}/optim/", "", OPTIMIZER_STATE),  # and what an update needs meanwhile
)
COMPILED = "torch.fx.graph_module"  # of graphs, be it those of a backward pass, whose function is called forward too
BACKWARD = f"{TORCH}/autograd/function.py"  # of a function in Python; the thread of the backward pass begins there


class Forwards:
    """The `forward` of the classes of live modules, by where their code is; a subclass may inherit it."""

    def __init__(self, modules: Iterable[nn.Module]):
        self.modules = Counter(map(_defining, map(type, modules)))  # by class
        self._at: dict[tuple[str, str], list[tuple[int, type[nn.Module]]]] = {}
        for kind in self.modules:
            code = getattr(inspect.unwrap(kind.forward), "__code__", None)
            if code is not None and kind.__module__ != COMPILED:
                self._at.setdefault((code.co_filename, code.co_name), []).append((code.co_firstlineno, kind))

    def called_at(self, frame: Mapping[str, Any]) -> type[nn.Module] | None:
        """Class that defines the `forward` which a frame is in."""
        there = self._at.get((frame["filename"], frame["name"]), ())
        return max((each for each in there if each[0] <= frame["line"]), key=lambda each: each[0], default=(0, None))[1]


def _defining(kind: type[nn.Module]) -> type[nn.Module]:
    return next(each for each in kind.__mro__ if "forward" in vars(each))


class Use(NamedTuple):
    """Category of a block, and which code is behind it: the class of a module, or a line such as "train.py:27"."""

    category: str
    where: str | None = None


def use_of(frames: list[dict[str, Any]], forwards: Forwards) -> Use:
    """What a block is for, by the stack that allocated it, the innermost frame first.

    Of nested modules the innermost one counts that is not PyTorch's own; of PyTorch's own the innermost. The threads of
    the backward pass have no Python of their own, so a block without a stack is a gradient.
    """
    if not frames:
        return Use(GRADIENTS)
    inner: Use | None = None
    for frame in frames:
        kind = forwards.called_at(frame)
        if kind is not None:
            if kind.__module__.partition(".")[0] != "torch":
                return Use(ACTIVATIONS, kind.__qualname__)
            inner = inner or Use(ACTIVATIONS, kind.__qualname__)
        elif inner is None:
            for file, function, category in LIBRARY:
                if frame["filename"].startswith(file) and function in frame["name"]:
                    return Use(category)
    if inner or frames[-1]["filename"] == BACKWARD:
        return inner or Use(GRADIENTS)
    own = next((each for each in frames if not each["filename"].startswith(TORCH)), frames[0])
    return Use(OTHER_TENSORS, f"{PurePath(own['filename']).name}:{own['line']}")


def owned(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, str]:
    """Category of blocks by their address: parameters with buffers, their gradients, and the state of optimizers."""
    optimizers = list(optimizers)
    parameters = [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    buffers: list[Any] = []
    for module in modules:
        parameters += module._parameters.values()
        buffers += module._buffers.values()
    gradients = (each.grad for each in parameters if isinstance(each, torch.Tensor))
    states = (optimizer.state for optimizer in optimizers)
    found: dict[int, str] = {}
    # What several hold is what the last of them says.
    for category, values in ((OPTIMIZER_STATE, states), (GRADIENTS, gradients), (PARAMETERS, (parameters, buffers))):
        found |= dict.fromkeys(_addresses(values), category)
    return found


def _addresses(value: Any) -> Iterator[int]:
    """Addresses of the memory of tensors in nested containers, of wrappers such as DTensor that of the inner ones."""
    if isinstance(value, torch.Tensor):
        if flatten := getattr(value, "__tensor_flatten__", None):
            yield from _addresses([getattr(value, name) for name in flatten()[0]])
        elif value.is_cuda:
            yield value.untyped_storage().data_ptr()
    elif isinstance(value, Mapping):
        yield from _addresses(value.values())
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            yield from _addresses(each)


def live(kind: type) -> list[Any]:
    """All objects of a class and of its subclasses that Python's garbage collector knows."""
    # By `type`, since `isinstance` asks objects, and proxies answer in strange ways.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def sum_up(
    snapshot: Mapping[str, Any], gpu: int, free: int, total: int, owners: Mapping[int, str], forwards: Forwards
) -> dict[str, Any]:
    """Bytes of a GPU by category, which add up to `total`, and for some categories the code that holds most of them.

    Gives `gpu`, `total_bytes`, `bytes` by category, and `most`: of activations and other tensors `where`, its `bytes`,
    and of a class how many `modules` it has. `fragments` are reserved but not allocated; `outside_pytorch` is what the
    driver counts as used and PyTorch's allocator of this process has not reserved: contexts, libraries, and other
    processes. `free`, `total`: bytes of the GPU, as the driver counts them; `owners`: as `owned` gives them.
    """
    held: Counter[str] = Counter()
    places: Counter[Use] = Counter()
    segments = [segment for segment in snapshot["segments"] if segment["device"] == gpu]
    # Where the script switched the history off, nothing has a stack, and that says nothing.
    has_stacks = any(block.get("frames") for segment in segments for block in segment["blocks"])
    for segment in segments:
        held[FRAGMENTS] += segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                owner = owners.get(block.get("address", address))
                by_stack = use_of(block.get("frames") or [], forwards) if has_stacks else Use(OTHER_TENSORS)
                use = Use(owner) if owner else by_stack
                held[use.category] += block["size"]
                held[FRAGMENTS] -= block["size"]
                if use.where:
                    places[use] += block["size"]
            address += block["size"]
    reserved = sum(segment["total_size"] for segment in segments)
    held[OUTSIDE], held[FREE] = total - free - reserved, free
    counts = Counter({kind.__qualname__: count for kind, count in forwards.modules.items()})
    most = {}
    for use, size in reversed(places.most_common()):
        modules = {"modules": counts[use.where]} if use.category == ACTIVATIONS else {}
        most[use.category] = {"where": use.where, "bytes": size, **modules}
    return {"gpu": gpu, "total_bytes": total, "bytes": dict(held), "most": most}

"""Find out how a script trains: its process groups, what makes its model parallel, its optimizer, its debug switches.

Most of this is read once, at the end of the measured steps (`describe_setup`). What each backward pass does is counted
by `BackwardPasses`. Wrapped models are found because hooks report them when they are made (`note_wrapped`): PyTorch has
no list of them.
"""

import os
import sys
import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import is_anomaly_enabled

from multicard.core.system import read_or_none
from multicard.core.values import JsonObject
from multicard.observe.ranks import has_process_group
from multicard.observe.record.compilation import graph_breaks, has_compiled

# Weak references to the models that were wrapped in DistributedDataParallel or DataParallel in this process.
_wrapped: list[Any] = []
# Attribute that FullyShardedDataParallel sets on the parameters that it flattens.
_FLATTENED = "_fsdp_flattened"
# Modules that have `fully_shard`, of newer and of older releases.
_FULLY_SHARD = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
# An autograd profiler that the script itself runs. PyTorch has no public function that tells.
_is_profiled = getattr(torch.autograd, "_profiler_enabled", lambda: False)
# So many parameters are looked at for one that has a gradient.
_LOOKED_AT = 16
# A switch counts as on if it is on in at least this share of the backward passes.
_MOSTLY = 0.5


def note_wrapped(module: torch.nn.Module) -> None:
    """Called when a model has been wrapped in DistributedDataParallel or DataParallel."""
    _wrapped.append(weakref.ref(module, _wrapped.remove))


def _modules(kind: type) -> list[Any]:
    """Return the wrapped models of a kind that still exist."""
    return [module for reference in _wrapped if isinstance(module := reference(), kind)]


class PassCounts(NamedTuple):
    """Numbers of backward passes."""

    passes: int = 0
    exchanged: int = 0  # that exchange the gradients of the DistributedDataParallel
    # Of these, those whose exchange was needless: the next pass adds to the same gradients, before any update.
    needless: int = 0
    with_anomaly: int = 0  # while PyTorch's anomaly detection is on
    profiled: int = 0  # while the script itself runs an autograd profiler

    def since(self, before: "PassCounts") -> "PassCounts":
        """Return how many there were after `before`.

        >>> PassCounts(8, 8, 6).since(PassCounts(4, 4, 3))
        PassCounts(passes=4, exchanged=4, needless=3, with_anomaly=0, profiled=0)
        """
        return PassCounts(*(now - then for now, then in zip(self, before, strict=True)))


class BackwardPasses:
    """Counts the backward passes of a process. Its methods run in every step, so they are short.

    DistributedDataParallel decides in the forward pass whether the next backward pass exchanges gradients, and keeps it
    as `require_forward_param_sync`. Passes count as exchanging only while there is a single DistributedDataParallel,
    and if they change a gradient of it.
    """

    def __init__(self) -> None:
        self._passes = self._exchanged = self._needless = self._with_anomaly = self._profiled = 0
        # True if the open pass exchanges gradients, provided that it is of the DistributedDataParallel. Only then `end`
        # must be called.
        self.exchanges = False
        # Of the open pass: how often the parameter's gradient was changed before it, and whether it adds to gradients
        # that were exchanged.
        self._before: int | None = None
        self._adds = False
        # A weak reference to a parameter that gets gradients; None until one is needed, and once it has none.
        self._parameter: Any = None
        # After a pass that exchanged, until the next update: how often this parameter's gradient was changed so far.
        self._version: int | None = None

    @property
    def counts(self) -> PassCounts:
        """The numbers so far."""
        return PassCounts(self._passes, self._exchanged, self._needless, self._with_anomaly, self._profiled)

    def begin(self) -> None:
        """Called when a backward pass begins."""
        self._passes += 1
        if is_anomaly_enabled():
            self._with_anomaly += 1
        if _is_profiled():
            self._profiled += 1
        if _wrapped:
            self._begin_of_wrapped()
        else:
            self._version = None

    def _begin_of_wrapped(self) -> None:
        self.exchanges = False
        wrapped = list(_wrapped)  # garbage that is collected meanwhile may take one away
        if len(wrapped) == 1:
            self._before = self._gradient_version()
            # The gradients are those of the last pass, unless they were cleared, set to zero or changed since then.
            self._adds = self._version is not None and self._version == self._before
            self.exchanges = getattr(wrapped[0](), "require_forward_param_sync", False)
        if not self.exchanges:
            self._version = None

    def end(self) -> None:
        """Called when a backward pass has ended that `exchanges`."""
        self.exchanges = False
        version = self._gradient_version()
        if version is None:
            version = self._version_of_another()
        # A pass of another model, such as a discriminator, changes no gradient.
        if version is not None and version != self._before:
            self._needless += self._adds
            self._exchanged += 1
            self._version = version

    def update(self) -> None:
        """Called when an optimizer has updated."""
        self._version = None

    def _gradient_version(self) -> int | None:
        parameter = None if self._parameter is None else self._parameter()
        gradient = None if parameter is None else parameter.grad
        return None if gradient is None else gradient._version

    def _version_of_another(self) -> int | None:
        """Choose another parameter, one that has a gradient, and return how often its gradient was changed so far."""
        wrapped = list(_wrapped)
        module = wrapped[0]() if wrapped else None
        # A model may have thousands of parameters, and none of them a gradient after a pass of another model.
        for parameter in islice(module.parameters(), _LOOKED_AT) if module is not None else ():
            if parameter.grad is not None:
                self._parameter = weakref.ref(parameter)
                version: int = parameter.grad._version
                return version
        return None


def describe_setup(
    optimizer: Any,
    device: torch.device,
    counts: PassCounts,
    steps: int,
    collectives: int | None,
    updates_in_graph: bool,
) -> JsonObject:
    """Return how this process trains, for rank.json: the fields of `runs.record.TrainingSetup`.

    `optimizer`: the lead optimizer; None if there is none. `device`: on which the rank computes. `counts` and
    `collectives`: of the `steps` measured steps; collectives of all process groups, None if they cannot be counted.
    `updates_in_graph`: True if a compiled function updates the parameters.
    """
    wrapper = read_or_none(lambda: _wrapper(optimizer))
    parallel = _modules(torch.nn.parallel.DistributedDataParallel)
    has_one = wrapper == "DistributedDataParallel" and len(parallel) == 1
    return {
        "backends": read_or_none(lambda: _backends(device.type)) or [],
        "wrapper": wrapper,
        "backward_passes": counts.passes / steps,
        "collectives": None if collectives is None else collectives / steps,
        "exchanged_passes": counts.exchanged / steps if has_one else None,
        "needless_exchanges": counts.needless / steps if has_one else None,
        **(_of_exchange(parallel) if wrapper == "DistributedDataParallel" else {}),
        **_of_optimizer(optimizer, None if updates_in_graph else device.type),
        "is_compiled": has_compiled(),
        "graph_breaks": graph_breaks(),
        "debugging": _debugging(counts),
    }


def _backends(device: str) -> list[str]:
    """Return the back ends of this process's groups for tensors on this kind of device, by name, without duplicates."""
    if not has_process_group():
        return []
    backends = set()
    for group in dist.distributed_c10d._world.pg_map:  # PyTorch has no public list of them
        if group.size() > 1:
            # "cpu:gloo,cuda:nccl"
            by_device = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
            backends.add(by_device.get(device))
    return sorted(backend for backend in backends if backend)


def _wrapper(optimizer: Any) -> str | None:
    """Return the name of what makes the model parallel; None if nothing of PyTorch does."""
    # `fully_shard` makes a subclass of `FSDPModule` for each class of modules that it shards.
    sharded = [getattr(sys.modules.get(name), "FSDPModule", None) for name in _FULLY_SHARD]
    has_sharded = any(parent is not None and any(map(_is_made, parent.__subclasses__())) for parent in sharded)
    if has_sharded or any(getattr(parameter, _FLATTENED, False) for parameter in _parameters(optimizer)):
        return "FSDP"
    if _modules(torch.nn.parallel.DistributedDataParallel):
        return "DistributedDataParallel"
    # On a single device, and on CPUs, DataParallel only calls the model.
    if any(len(module.device_ids) > 1 for module in _modules(torch.nn.DataParallel)):
        return "DataParallel"
    return None


def _is_made(sharded: type) -> bool:
    """Return True if `fully_shard` made this class: its name begins with "FSDP". PyTorch has subclasses of its own."""
    return sharded.__name__.startswith("FSDP")


def _of_exchange(modules: list[Any]) -> JsonObject:
    """Return how DistributedDataParallel exchanges gradients and buffers, all wrapped models together."""
    settings = [read_or_none(module._get_ddp_logging_data) for module in modules]
    described: list[dict[str, Any]] = [setting for setting in settings if setting is not None]
    facts: JsonObject = {
        "broadcast_bytes": read_or_none(lambda: sum(map(_broadcast_bytes, modules))),
        "synchronized_norms": sum(
            isinstance(layer, torch.nn.SyncBatchNorm) for module in modules for layer in module.modules()
        ),
    }
    if len(described) < len(modules):
        return facts
    searching = [setting for setting in described if _searches(setting)]
    return {
        **facts,
        "gradient_bytes": _total(setting.get("total_parameter_size_bytes") for setting in described),
        "buckets": _total(_buckets(setting) for setting in described),
        "bucket_limit_bytes": min((setting.get("bucket_cap_bytes") or 0 for setting in described), default=0) or None,
        "finds_unused": bool(searching),
        # DistributedDataParallel looks for them in its first passes, and then in one of a hundred.
        "has_unused": any(setting["unused_parameter_size"] for setting in searching)
        if searching and all(setting.get("iteration") and "unused_parameter_size" in setting for setting in searching)
        else None,
    }


def _searches(setting: dict[str, Any]) -> bool:
    """Return True if each forward pass searches for unused parameters: for a static graph only the first one does."""
    return bool(setting.get("find_unused_parameters")) and not setting.get("static_graph")


def _buckets(setting: dict[str, Any]) -> int | None:
    """Return the number of buckets. Those of the first pass are rebuilt after it, unless that cannot be done.

    >>> _buckets({"bucket_sizes": "96", "rebuilt_bucket_sizes": "32, 64"}), _buckets({"bucket_sizes": "96"})
    (2, 1)
    """
    sizes = setting.get("rebuilt_bucket_sizes") or setting.get("bucket_sizes")
    return len(str(sizes).split(",")) if sizes else None


def _broadcast_bytes(module: Any) -> int:
    """Return the bytes of buffers that a DistributedDataParallel sends in each forward pass."""
    buffers = module.modules_buffers if module.broadcast_buffers else []
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers)


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one is unknown."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    groups = getattr(optimizer, "param_groups", None) or []
    return [parameter for group in groups for parameter in group["params"]]


def _of_optimizer(optimizer: Any, device: str | None) -> JsonObject:
    """Return how an optimizer updates.

    `device`: kind of device that its parameters are on; None if a compiled function updates them.
    """
    parameters = _parameters(optimizer)
    if not parameters:
        return {}
    # One-dimensional parameters alone are most likely flattened ones, as of sharding, whose dimensions are not known.
    is_flattened = all(parameter.dim() <= 1 for parameter in parameters)
    return {
        "parameters": len(parameters),
        "has_convolutions": None if is_flattened else any(parameter.dim() in (4, 5) for parameter in parameters),
        "loops_over_parameters": None if device is None else read_or_none(lambda: _loops(optimizer, device)),
        "can_fuse": None if device is None else read_or_none(lambda: _can_fuse(optimizer)),
    }


def _loops(optimizer: Any, device: str) -> bool | None:
    """Return True if an optimizer updates one parameter after the other; None if it does not state how it updates.

    If neither `foreach` nor `fused` is stated, optimizers of PyTorch update many at once on GPUs, and loop on CPUs. If
    one of the two is stated as false, they do not choose the other.
    """
    if not _is_of_pytorch(optimizer) or any("foreach" not in group for group in optimizer.param_groups):
        return None
    ways = [(group["foreach"], group.get("fused")) for group in optimizer.param_groups]
    return any(not (foreach or fused) and (device == "cpu" or False in (foreach, fused)) for foreach, fused in ways)


def _can_fuse(optimizer: Any) -> bool:
    """Return True if the optimizer's class takes `fused=True` for such parameters; it raises if it does not."""
    if not _is_of_pytorch(optimizer):
        return False
    parameters = _parameters(optimizer)
    if any(type(parameter) not in (torch.Tensor, torch.nn.Parameter) for parameter in parameters):
        return False
    for device, dtype in {(parameter.device, parameter.dtype) for parameter in parameters}:
        like = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)
        if read_or_none(lambda like=like: type(optimizer)([like], lr=1e-3, fused=True)) is None:  # type: ignore[misc]
            return False
    return True


def _is_of_pytorch(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _debugging(counts: PassCounts) -> list[str]:
    """Return the switches for debugging that are on."""
    has_cuda = torch.cuda.is_initialized()
    most = max(1.0, _MOSTLY * counts.passes)
    switches = {
        "anomaly detection": counts.with_anomaly >= most,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autograd profiler": counts.profiled >= most,
        "CUDA_LAUNCH_BLOCKING": has_cuda and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "TORCH_DISTRIBUTED_DEBUG": has_process_group() and dist.get_debug_level() == dist.DebugLevel.DETAIL,
        "synchronization warnings": has_cuda and bool(torch.cuda.get_sync_debug_mode()),
    }
    return [name for name, is_on in switches.items() if is_on]

"""Diagnosis of GPUs that only copy or fill memory, by the direction that takes longest."""

from collections.abc import Iterator
from typing import NamedTuple

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, Sum, things
from multicard.core.units import BYTES, BYTES_PER_S, SECONDS, with_unit
from multicard.results.breakdown import StepPart


class _Kind(NamedTuple):
    """Operations of one kind: their words, for one of them, and what to do instead."""

    operation: str
    host_memory: str | None
    words: str
    remedy: str


_OVERLAP = "the next batch copied on a stream of its own while this one trains, with `non_blocking=True`"
_KINDS = (
    _Kind(
        "host_to_device", "pageable", "from pageable memory to the GPU",
        "`pin_memory=True` of the loader and copies with `non_blocking=True`",
    ),
    _Kind("host_to_device", "pinned", "from pinned memory to the GPU", _OVERLAP),
    _Kind("host_to_device", None, "from the host to the GPU", _OVERLAP),
    _Kind(
        "device_to_device", None, "within the GPU",
        "tensors updated in place, and views in place of copies (`.clone()`, `.contiguous()`, `torch.cat`)",
    ),
    _Kind("device_to_host", None, "from the GPU to the host", "fewer copies to the host, or in one of many steps"),
)  # fmt: skip


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU only copies, with the kind of copies that takes longest: how many, how large and how fast.

    Copies may run beside one another, so their summed time is only the most that they take alone.
    """
    alone = activity.share(StepPart.MEMORY_OPERATIONS)
    if alone < LEAST or not activity.whole_s:
        return
    kind, copies = max(((kind, _sum(activity, kind)) for kind in _KINDS), key=lambda pair: pair[1].seconds)
    share = min(alone, copies.seconds / activity.whole_s)
    if share < LEAST or not copies.bytes:
        return
    rate = with_unit(copies.bytes / copies.seconds, BYTES_PER_S)
    evidence = (
        f"a GPU only copies or fills memory for {activity.takes(alone)}; {with_unit(copies.bytes, BYTES)} {kind.words} "
        f"{activity.each}, in {things(copies.calls, 'call')}, take {with_unit(copies.seconds, SECONDS)} ({rate})"
    )
    yield Diagnosis(evidence, kind.remedy, share, part=StepPart.MEMORY_OPERATIONS)


def _sum(activity: GpuActivity, kind: _Kind) -> Sum:
    """Return the sum of the copies of a kind; without a kind of host memory, of those for which none was recorded."""
    copies = activity.sum_of("memory_operations", operation=kind.operation)
    if kind.operation != "host_to_device":
        return copies
    if kind.host_memory is not None:
        return activity.sum_of("memory_operations", operation=kind.operation, host_memory=kind.host_memory)
    named = activity.sum_of("memory_operations", operation=kind.operation, host_memory=("pageable", "pinned"))
    size = None if copies.bytes is None else copies.bytes - (named.bytes or 0.0)
    return Sum(copies.calls - named.calls, copies.seconds - named.seconds, size)

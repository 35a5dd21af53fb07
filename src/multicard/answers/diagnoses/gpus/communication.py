"""Diagnosis of GPUs that communicate without computing, by the number and size of their collectives."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, Sum, count
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.results.breakdown import StepPart

# Collectives are many and small if a step has at least so many, and their messages are smaller than this. Where no
# sizes are known, they are if they are shorter than this.
MANY = 20
SMALL_BYTES = 1e6
SHORT_S = 500e-6
# Collectives by which gradients are reduced.
_OF_GRADIENTS = ("all_reduce", "reduce_scatter")
_LARGER = (
    "fewer and larger exchanges: larger gradient buckets (`bucket_cap_mb` of `DistributedDataParallel`), or one flat "
    "tensor in place of many"
)
_OVERLAPPED = (
    "exchanges that overlap with the backward pass (`DistributedDataParallel`, smaller buckets), gradients sent in 16 "
    "bits (a communication hook), or gradient accumulation"
)
_FEWER = "fewer or larger exchanges, or exchanges that overlap with computing"


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU communicates without computing, with the collective that takes longest and what overlaps.

    Without the traces of all ranks, this may include waiting for late ranks.
    """
    share = activity.share(StepPart.COMMUNICATION)
    collectives = activity.sums_by("collectives", "collective")
    if share < LEAST or not collectives:
        return
    name, longest = next(iter(collectives.items()))
    mean = f"{with_unit(longest.mean_s, SECONDS)}{_size(activity, name)} on average"
    words = f"{count(longest.calls)} {name.replace('_', '-')} {activity.each}, of {mean}"
    evidence = f"a GPU communicates without computing for {activity.takes(share)}: {words}{_overlap(activity)}"
    yield Diagnosis(evidence, _remedy(activity, name, longest), share, part=StepPart.COMMUNICATION)


def _remedy(activity: GpuActivity, name: str, collectives: Sum) -> str:
    size = _mean_bytes(activity, name)
    is_small = collectives.mean_s < SHORT_S if size is None else size < SMALL_BYTES
    if name not in _OF_GRADIENTS:
        return _FEWER
    return _LARGER if is_small and collectives.calls >= MANY else _OVERLAPPED


def _size(activity: GpuActivity, name: str) -> str:
    """Return the mean size of the messages in words, or nothing if it is not known."""
    size = _mean_bytes(activity, name)
    return "" if size is None else f" and {with_unit(size, BYTES)}"


def _mean_bytes(activity: GpuActivity, name: str) -> float | None:
    """Return the mean size of the messages of a collective; None if the sizes of some are not known."""
    rows = activity.tables["collectives"]
    rows = rows[rows["collective"] == name]
    messages = rows["messages"].sum() if "messages" in rows else 0
    if not messages or messages < rows["calls"].sum():
        return None
    return float(rows["message_bytes"].sum() / messages)


def _overlap(activity: GpuActivity) -> str:
    """Return which share of the communication is beside computing, in words."""
    communication_s = activity.total_s("communication_s")
    if not communication_s:
        return ""
    hidden = activity.total_s("overlapped_s") / communication_s
    beside = "none" if hidden < 0.005 else percent(hidden)
    return f"; {beside} of the communication is beside computing"

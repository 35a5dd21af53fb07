"""Diagnosis of GPUs that are idle because the host waits for them, and launches nothing meanwhile."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, count, in_calls
from multicard.core.text import listed
from multicard.core.units import BYTES, with_unit
from multicard.results.breakdown import StepPart
from multicard.trace.api_calls import HostActivity
from multicard.trace.idle import WAITING

_NO_SYNCHRONIZING = "no `torch.cuda.synchronize()` in the loop"
_NO_COPYING = "no values of the GPU in each step (`.item()`, `.cpu()`, `print(loss)`): only in one of many steps"
_ASYNCHRONOUS = "copies with `non_blocking=True` from pinned memory"


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU is idle while the host is still in calls that wait for it, with these and the copies to it."""
    share = activity.share(StepPart.SYNCHRONIZING)
    waits = activity.calls(HostActivity.WAITING)
    if share < LEAST or not waits:
        return
    # That with the most idle time stands before the others, which are ordered by the time that the host is in them.
    function = activity.longest_idle_call(WAITING) or next(iter(waits))
    longest = sorted(waits.items(), key=lambda item: item[0] != function)[:2]
    words = [in_calls(name, found) for name, found in longest]
    to_host = activity.sum_of("memory_operations", operation="device_to_host")
    if to_host.calls:
        size = to_host.mean_bytes
        of_size = "" if size is None else f" of {with_unit(size, BYTES)} on average"
        words.append(f"{count(to_host.calls)} {'copy' if to_host.calls == 1 else 'copies'} to the host{of_size}")
    evidence = (
        f"a GPU is idle for {activity.takes(share)} while the host is still in a synchronization or a blocking copy: "
        f"{listed(words)} {activity.each}"
    )
    yield Diagnosis(evidence, _remedy(function, to_host.calls), share, part=StepPart.SYNCHRONIZING)


def _remedy(function: str, copies_to_host: float) -> str:
    """Return what to do about waiting in a function of the API; `copies_to_host`: their number in a step."""
    if "DeviceSynchronize" in function:
        return _NO_SYNCHRONIZING
    if "Memcpy" in function:
        return f"{_ASYNCHRONOUS}, and {_NO_COPYING}" if copies_to_host else _ASYNCHRONOUS
    return _NO_COPYING if copies_to_host else f"{_NO_COPYING}, and {_NO_SYNCHRONIZING}"

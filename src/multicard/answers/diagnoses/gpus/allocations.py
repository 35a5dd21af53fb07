"""Diagnosis of GPUs that are idle because the host allocates, frees or registers memory again and again."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, in_calls
from multicard.core.text import listed
from multicard.results.breakdown import StepPart
from multicard.trace.api_calls import HostActivity
from multicard.trace.idle import ALLOCATING

# A capture without steps may show the start of a program, which allocates. Only so many calls show that it goes on.
MANY_CALLS = 20
_PINNED_ONCE = "pinned memory that is made once and kept, not in each step"
_KEEP_CACHE = (
    "no `torch.cuda.empty_cache()` in the loop, and batches of equal shapes, so that PyTorch uses its memory again"
)


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU is idle while the host allocates, with the functions and how often they are called."""
    share = activity.share(StepPart.ALLOCATING)
    calls = activity.calls(HostActivity.ALLOCATING)
    if share < LEAST or not calls:
        return
    if activity.whole != "step" and sum(found.calls for found in calls.values()) < MANY_CALLS:
        return
    words = listed([in_calls(name, found) for name, found in list(calls.items())[:2]])
    function = activity.longest_idle_call(ALLOCATING) or next(iter(calls))
    remedy = _PINNED_ONCE if "Host" in function else _KEEP_CACHE
    evidence = f"a GPU is idle for {activity.takes(share)} while the host allocates or frees memory: {words}"
    yield Diagnosis(f"{evidence} {activity.each}", remedy, share, part=StepPart.ALLOCATING)

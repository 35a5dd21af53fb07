"""Diagnosis of GPUs that are idle although their next kernel is launched already."""

from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, in_calls, things
from multicard.core.text import listed
from multicard.core.units import SECONDS, with_unit
from multicard.results.breakdown import StepPart
from multicard.trace.api_calls import HostActivity

# A kernel starts some microseconds after its launch, or after the kernel before it on its stream. If idle time per
# kernel is less than this on average, that is the reason; else kernels wait for another stream or an event.
FROM_KERNEL_TO_KERNEL_S = 15e-6
_FUSED = "fewer and longer kernels (`torch.compile`, fused optimizers), or CUDA graphs, which shorten these gaps"
_INDEPENDENT = "fewer events and streams that wait for one another, so that kernels wait for no copies or exchanges"


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU is idle with launched work, with the mean time per kernel or what makes streams wait."""
    share = activity.share(StepPart.QUEUED)
    kernels = activity.sum_of("kernel_classes")
    if share < LEAST or not kernels.calls or not activity.whole_s:
        return
    gap_s = share * activity.whole_s / kernels.calls
    evidence = f"a GPU is idle for {activity.takes(share)} although its next work is launched already"
    if gap_s < FROM_KERNEL_TO_KERNEL_S:
        evidence += f": {with_unit(gap_s, SECONDS)} for each of {things(kernels.calls, 'kernel')} {activity.each}"
        yield Diagnosis(evidence, _FUSED, share, part=StepPart.QUEUED)
        return
    waits = {name: found for name, found in activity.calls(HostActivity.OTHER).items() if "StreamWait" in name}
    if waits:
        words = listed([in_calls(name, found) for name, found in list(waits.items())[:2]])
        evidence += f"; the host makes streams wait for others by {words} {activity.each}"
    yield Diagnosis(evidence, _INDEPENDENT, share, part=StepPart.QUEUED)

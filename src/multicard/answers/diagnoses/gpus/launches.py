"""Diagnosis of GPUs that wait for the host to launch their kernels."""

import re
from collections.abc import Iterator

from multicard.answers.bottlenecks.bottlenecks import LEAST
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import GpuActivity, in_calls, things
from multicard.core.text import listed
from multicard.core.units import SECONDS, with_unit
from multicard.results.breakdown import StepPart
from multicard.trace.api_calls import GRAPH_LAUNCH, HostActivity
from multicard.trace.kernel_classes import CLASSES

# Functions with which a program waits for a value of the GPU, as by `.item()`. Profilers and timers call others.
_FOR_VALUES = re.compile(r"(?:cuda|hip)(?:StreamSynchronize|Memcpy(?!.*Async))")
# Kernels of communication are few, and long because they wait for other ranks.
_COMPUTING = tuple(name for name in CLASSES if name != "communication")
_NO_WAITING = "no waiting for the GPU in each step (`.item()`, `.cpu()`, printing a loss)"


def diagnoses(activity: GpuActivity) -> Iterator[Diagnosis]:
    """Yield that a GPU is idle while the host launches kernels, with how many and how short these are."""
    share = activity.share(StepPart.LAUNCHES)
    kernels = activity.sum_of("kernel_classes", **{"class": _COMPUTING})
    if share < LEAST or not kernels.calls:
        return
    mean = with_unit(kernels.mean_s, SECONDS)
    evidence = (
        f"a GPU is idle for {activity.takes(share)} while the host launches work: "
        f"{things(kernels.calls, 'kernel')} {activity.each}, of {mean} on average"
    )
    launching = activity.calls(HostActivity.LAUNCHING)
    has_graphs = any(GRAPH_LAUNCH.match(function) for function in launching)
    fewer = "more of the step in CUDA graphs" if has_graphs else "CUDA graphs"
    remedy = f"`torch.compile`, {fewer}, or more work per kernel by a larger batch"
    # After each wait the host has to launch again before the GPU has work.
    waits = activity.calls(HostActivity.WAITING)
    for_values = {name: found for name, found in waits.items() if _FOR_VALUES.match(name) and found.calls >= 1}
    if for_values and activity.whole == "step":
        words = listed([in_calls(name, found) for name, found in list(for_values.items())[:2]])
        evidence += f"; it also waits for the GPU, in {words} a step"
        remedy += f"; and {_NO_WAITING}"
    yield Diagnosis(evidence, remedy, share, part=StepPart.LAUNCHES)
